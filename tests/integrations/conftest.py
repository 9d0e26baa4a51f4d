import support.torchvision_stubs  # noqa: F401  before any package imports torchvision
