"""Networks of other packages, in small sizes and with random weights; the extra ``zoo`` installs them."""

import support.torchvision_stubs  # noqa: F401 - before anybody looks for torchvision
