"""Networks of other packages, in small sizes and with random weights, each with inputs that it takes."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import support.torchvision_stubs  # noqa: F401 # pyright: ignore - before torchvision itself

Inputs = Callable[[int], Any]  # from a batch size to an example_input

CLASSES, WORDS = 10, 64


@dataclass(frozen=True)
class Entry:
    """A network of a package, how it is built, and inputs for it."""

    package: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs


def images(size: int, channels: int = 3) -> Inputs:
    return lambda batch: torch.randn(batch, channels, size, size)


def pixels(size: int = 32) -> Inputs:
    return lambda batch: {"pixel_values": torch.randn(batch, 3, size, size)}


def words(*names: str, length: int = 12) -> Inputs:
    def inputs(batch: int) -> Any:
        each = {name: torch.randint(3, WORDS, (batch, length)) for name in names}
        return {**each, "attention_mask": torch.ones(batch, length, dtype=torch.long)}

    return inputs


def numbers(*shape: int) -> Inputs:
    return lambda batch: torch.randn(batch, *shape)


# torchvision

TORCHVISION = """alexnet vgg11_bn resnet18 resnext50_32x4d densenet121 googlenet squeezenet1_1 mobilenet_v2
    mobilenet_v3_small efficientnet_b0 regnet_y_400mf mnasnet0_5 shufflenet_v2_x0_5 convnext_tiny swin_t
    fcn_resnet50 deeplabv3_mobilenet_v3_large inception_v3 maxvit_t vit_b_16"""
_TORCHVISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "maxvit_t": {"input_size": (64, 64)},
    "vit_b_16": {"image_size": 64},
    "fcn_resnet50": {"weights_backbone": None},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
}


def torchvision_entries() -> Iterator[Entry]:
    def build(name: str) -> nn.Module:
        from torchvision import models

        arguments = {"weights": None, "num_classes": CLASSES, **_TORCHVISION_ARGUMENTS.get(name, {})}
        if name == "vit_b_16":  # of the same class, but not of 86 million parameters
            sizes: Any = {"patch_size": 16, "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 256}
            return models.VisionTransformer(image_size=64, num_classes=CLASSES, **sizes)
        if name == "maxvit_t":
            sizes = {"stem_channels": 16, "block_channels": [16, 32], "block_layers": [1, 1], "head_dim": 8}
            rates = {"stochastic_depth_prob": 0.2, "partition_size": 4, "input_size": (64, 64)}
            return models.MaxVit(num_classes=CLASSES, **sizes, **rates)
        home = models.segmentation if hasattr(models.segmentation, name) else models
        return getattr(home, name)(**arguments)

    for name in TORCHVISION.split():
        size = 96 if name == "inception_v3" else 64
        yield Entry("torchvision", name, partial(build, name), images(size))


# timm: one or two of each family, mostly the smallest

_SIZED = {"img_size": 64}
TIMM: dict[str, dict[str, Any]] = {
    "resnet18": {"drop_path_rate": 0.1},
    "seresnet18": {"drop_path_rate": 0.1},
    "ecaresnet26t": {},
    "resnetv2_18": {},
    "resnetv2_50x1_bit": {},
    "res2net50_48w_2s": {},
    "resnest14d": {},
    "skresnet18": {},
    "legacy_seresnet18": {},
    "cspresnet50": {},
    "densenet121": {},
    "dla46_c": {},
    "dpn48b": {},
    "xception41": {},
    "inception_v4": {"size": 128},
    "inception_next_atto": {},
    "efficientnet_b0": {},
    "efficientnetv2_rw_t": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_050": {},
    "tinynet_e": {},
    "ghostnet_050": {},
    "regnety_002": {},
    "repvgg_a0": {},
    "mobileone_s0": {},
    "hgnetv2_b0": {},
    "hrnet_w18_small": {},
    "ese_vovnet19b_dw": {},
    "rexnet_100": {},
    "selecsls42b": {},
    "starnet_s1": {},
    "nf_resnet26": {},
    "convnext_atto": {},
    "convnextv2_atto": {},
    "fastvit_t8": {},
    "repvit_m0_9": {},
    "poolformer_s12": {},
    "edgenext_xx_small": {},
    "mobilevit_xxs": {},
    "efficientvit_b0": {},
    "efficientformer_l1": {"size": 224},
    "levit_128s": {"size": 224},
    "visformer_tiny": _SIZED,
    "vit_tiny_patch16_224": {**_SIZED, "depth": 3},
    "deit3_small_patch16_224": {**_SIZED, "depth": 3},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 3},
    "swin_tiny_patch4_window7_224": {**_SIZED, "window_size": 4, "depths": (1, 1, 2, 1)},
    "pvt_v2_b0": {},
    "cait_xxs24_224": {**_SIZED, "depth": 3},
    "mixer_s32_224": _SIZED,
    "gmlp_ti16_224": _SIZED,
    "twins_svt_small": _SIZED,
}


def timm_entries() -> Iterator[Entry]:
    def build(name: str, arguments: dict[str, Any]) -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=CLASSES, **arguments)

    for name, given in TIMM.items():
        arguments = dict(given)
        size = arguments.pop("size", arguments.get("img_size", 64))
        yield Entry("timm", name, partial(build, name, arguments), images(size))


# transformers

_TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {"vocab_size": WORDS, **_TOWER}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
_IMAGE = {"image_size": 32, "patch_size": 8, **_TOWER}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
_SPEECH = {
    **{"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 32, **_TOWER},
}
_ids, _encoded = words("input_ids"), words("input_ids", "decoder_input_ids")


def _speech(batch: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, 800)}


def _spectrum(batch: int) -> dict[str, torch.Tensor]:
    features = torch.randn(batch, 16, 40)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, WORDS, (batch, 6))}


def _captioned(batch: int) -> dict[str, torch.Tensor]:
    return {**_ids(batch), **pixels()(batch)}


TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "BertForSequenceClassification": ("BertConfig", _TEXT, _ids),
    "DistilBertModel": (
        "DistilBertConfig",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        _ids,
    ),
    "RobertaForMaskedLM": ("RobertaConfig", _TEXT, _ids),
    "ModernBertModel": ("ModernBertConfig", {**_TEXT, "pad_token_id": 0}, _ids),
    "ElectraModel": ("ElectraConfig", {"embedding_size": 32, **_TEXT}, _ids),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
        _ids,
    ),
    "OPTForCausalLM": (
        "OPTConfig",
        {**{k: v for k, v in _TEXT.items() if k != "intermediate_size"}, "ffn_dim": 64, "use_cache": False,
         "max_position_embeddings": 32, "word_embed_proj_dim": 32},
        _ids,
    ),
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED, _ids),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED, _ids),
    "MixtralForCausalLM": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}, _ids),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
         "use_cache": False},
        _encoded,
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {"vocab_size": WORDS, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
         "decoder_ffn_dim": 64, "max_source_positions": 20, "max_target_positions": 16, "use_cache": False,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        _spectrum,
    ),
    "Wav2Vec2Model": ("Wav2Vec2Config", _SPEECH, _speech),
    "ViTForImageClassification": ("ViTConfig", _IMAGE, pixels()),
    "DeiTForImageClassification": ("DeiTConfig", _IMAGE, pixels()),
    "Dinov2ForImageClassification": ("Dinov2Config", {**_IMAGE, "mlp_ratio": 2}, pixels()),
    "SwinForImageClassification": (
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
         "window_size": 4},
        pixels(),
    ),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32},
        pixels(64),
    ),
    "ResNetForImageClassification": ("ResNetConfig", {**_STAGES, "embedding_size": 8}, pixels()),
    "RegNetForImageClassification": (
        "RegNetConfig", {**_STAGES, "embedding_size": 8, "groups_width": 4}, pixels()
    ),
    "ConvNextForImageClassification": ("ConvNextConfig", {**_STAGES, "num_stages": 2}, pixels()),
    "ConvNextV2ForImageClassification": ("ConvNextV2Config", {**_STAGES, "num_stages": 2}, pixels()),
    "MobileNetV2ForImageClassification": ("MobileNetV2Config", {"depth_multiplier": 0.35}, pixels(64)),
    "EfficientNetForImageClassification": (
        "EfficientNetConfig",
        {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
        pixels(64),
    ),
    "CLIPModel": (
        "CLIPConfig",
        {"projection_dim": 16, "text_config": {**_TEXT, "max_position_embeddings": 16, "eos_token_id": 2},
         "vision_config": _IMAGE},
        _captioned,
    ),
}  # fmt: skip


def transformers_entries() -> Iterator[Entry]:
    def build(name: str, config: str, arguments: dict[str, Any]) -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**arguments))

    for name, (config, arguments, inputs) in TRANSFORMERS.items():
        yield Entry("transformers", name, partial(build, name, config, arguments), inputs)


# ultralytics

ULTRALYTICS = [f"yolo{version}n{task}" for version in ("v8", "11") for task in ("", "-cls", "-seg")]


def ultralytics_entries() -> Iterator[Entry]:
    def build(name: str) -> nn.Module:
        from ultralytics.nn import tasks

        kinds = {"cls": tasks.ClassificationModel, "seg": tasks.SegmentationModel}
        kind = kinds.get(name.rpartition("-")[2], tasks.DetectionModel)
        model = kind(f"{name}.yaml", nc=CLASSES, verbose=False)
        for parameter in model.parameters():
            parameter.requires_grad = True
        return model

    for name in ULTRALYTICS:
        yield Entry("ultralytics", name, partial(build, name), images(64))


# for medicine and segmentation


def segmentation_entries() -> Iterator[Entry]:
    def build(kind: str, encoder: str) -> nn.Module:
        import segmentation_models_pytorch as smp

        return getattr(smp, kind)(encoder, encoder_weights=None, classes=3)

    for kind, encoder in [("Unet", "resnet18"), ("FPN", "mobilenet_v2"), ("DeepLabV3Plus", "resnet18")]:
        name = f"{kind} ({encoder})"
        yield Entry("segmentation-models-pytorch", name, partial(build, kind, encoder), images(64))


def monai_entries() -> Iterator[Entry]:
    def build(name: str) -> nn.Module:
        from monai.networks import nets

        each: dict[str, dict[str, Any]] = {
            "UNet": {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (8, 16, 32),
                     "strides": (2, 2), "num_res_units": 2},
            "SegResNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2, "init_filters": 8},
            "DenseNet121": {"spatial_dims": 2, "in_channels": 1, "out_channels": 2},
            "BasicUNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2,
                          "features": (8, 8, 16, 32, 64, 8)},
        }  # fmt: skip
        return getattr(nets, name)(**each[name])

    shapes = {"UNet": (1, 32, 32), "SegResNet": (1, 16, 16, 16), "DenseNet121": (1, 64, 64)}
    for name, shape in {**shapes, "BasicUNet": (1, 32, 32, 32)}.items():
        yield Entry("monai", name, partial(build, name), numbers(*shape))


# graphs


def geometric_entries() -> Iterator[Entry]:
    def build(name: str) -> nn.Module:
        from torch_geometric.nn import models

        return getattr(models, name)(in_channels=16, hidden_channels=32, num_layers=3, out_channels=CLASSES)

    def graph(batch: int) -> dict[str, torch.Tensor]:
        nodes = 10 * batch
        return {"x": torch.randn(nodes, 16), "edge_index": torch.randint(nodes, (2, 4 * nodes))}

    for name in ("GCN", "GraphSAGE", "GIN", "GAT"):
        yield Entry("torch_geometric", name, partial(build, name), graph)


# torch itself


class Recurrent(nn.Module):
    """Words, a recurrent network, and what its last output says."""

    def __init__(self, kind: type[nn.Module], **arguments: Any):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.recurrent = kind(32, 48, batch_first=True, **arguments)
        width = 48 * (2 if arguments.get("bidirectional") else 1)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embed(x))[0][:, -1])


class Translator(nn.Module):
    """``nn.Transformer`` between embeddings and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.transformer = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.transformer(self.embed(x) * math.sqrt(32), self.embed(y)))


def torch_entries() -> Iterator[Entry]:
    def sentences(batch: int) -> torch.Tensor:
        return torch.randint(WORDS, (batch, 9))

    def pairs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return sentences(batch), torch.randint(WORDS, (batch, 7))

    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return nn.Sequential(nn.Embedding(WORDS, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, CLASSES))

    yield Entry("torch", "nn.TransformerEncoder", encoder, sentences)
    yield Entry("torch", "nn.Transformer", Translator, pairs)
    yield Entry("torch", "nn.LSTM", lambda: Recurrent(nn.LSTM, num_layers=2), sentences)
    yield Entry("torch", "nn.GRU", lambda: Recurrent(nn.GRU, bidirectional=True), sentences)


def entries() -> list[Entry]:
    """The whole list."""
    return [
        *torchvision_entries(),
        *timm_entries(),
        *transformers_entries(),
        *ultralytics_entries(),
        *segmentation_entries(),
        *monai_entries(),
        *geometric_entries(),
        *torch_entries(),
    ]
