"""Imported before torchvision, whose wheel lacks its compiled operators beside the CPU build of torch.

It registers shapes for two of them when it is imported, and that fails where they are not defined.
"""

import torch

_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, _name)
    except AttributeError:
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
