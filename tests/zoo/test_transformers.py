"""Networks of transformers, given a mapping of keyword arguments."""

import pytest
import torch
from support.zoo import check_delivery

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {"input_ids": torch.arange(3, 27).view(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
IMAGES = {"pixel_values": torch.randn(2, 3, 32, 32)}
NETWORKS = {
    "BertModel": ("BertConfig", {"vocab_size": 64, **SIZES}, WORDS),
    "LlamaForCausalLM": ("LlamaConfig", {"vocab_size": 64, "num_key_value_heads": 2, **SIZES}, WORDS),
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2,
                                       "n_head": 4, "use_cache": False}, WORDS),
    "T5EncoderModel": ("T5Config", {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64,
                                    "num_layers": 2, "num_heads": 4}, WORDS),
    "ViTModel": ("ViTConfig", {"image_size": 32, "patch_size": 8, **SIZES}, IMAGES),
    "ConvNextModel": ("ConvNextConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, IMAGES),
    "EfficientNetModel": ("EfficientNetConfig", {"width_coefficient": 0.25, "depth_coefficient": 0.25,
                                                 "hidden_dim": 320}, IMAGES),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    config, arguments, example = NETWORKS[name]
    small = check_delivery(
        lambda: getattr(transformers, name)(getattr(transformers, config)(**arguments)), example
    )
    assert type(small).__name__ == name  # with its own forward
