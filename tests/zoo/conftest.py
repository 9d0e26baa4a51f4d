"""Networks of other packages, in small sizes and with random weights; the extra ``zoo`` installs them."""

import torch

# torchvision, which timm imports, lacks its compiled operators beside the CPU build; models need none.
_OPERATORS = {
    "nms": "Tensor dets, Tensor scores, float iou_threshold",
    "qnms": "Tensor dets, Tensor scores, float iou_threshold",
    "roi_align": "Tensor a, Tensor b, float c, int d, int e, int f, bool g",
    **dict.fromkeys(("deform_conv2d", "ps_roi_align", "ps_roi_pool", "roi_pool"), "Tensor a"),
}
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")

for _name, _arguments in _OPERATORS.items():
    if not hasattr(torch.ops.torchvision, _name):
        _LIBRARY.define(f"{_name}({_arguments}) -> Tensor")
