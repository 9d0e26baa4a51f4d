"""What the networks' arguments may be: one wording for all of them."""

from typing import Annotated, Literal

from fadeout._arguments import Only

Stem = Annotated[
    Literal["cifar", "imagenet"], Only(lambda stem: True, "'cifar' (small images) or 'imagenet' (large ones)")
]
