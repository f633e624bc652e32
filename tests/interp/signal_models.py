"""Tiny random models of images and sounds."""

import torch
import transformers

_WIDTHS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_IMAGE = {**_WIDTHS, "image_size": 32, "patch_size": 8}
_WHISPER = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 97,
    "max_source_positions": 24, "max_target_positions": 40, "num_mel_bins": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
# name: class, config, shape of one input, tokens, grid, tokens outside it
MODELS = {
    "vit": ("ViTForImageClassification", "ViTConfig", _IMAGE, (3, 32, 32), 17, (4, 4), [0]),
    "registers": (
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _IMAGE, (3, 32, 32), 21, (4, 4),
        [0, 1, 2, 3, 4],
    ),
    "rotary": ("DINOv3ViTModel", "DINOv3ViTConfig", _IMAGE, (3, 32, 32), 17, (4, 4), [0]),
    "pooling": ("SiglipVisionModel", "SiglipVisionConfig", _IMAGE, (3, 32, 32), 16, (4, 4), []),
    "detection": (
        "YolosModel", "YolosConfig",
        {**_IMAGE, "image_size": [32, 48], "num_detection_tokens": 3}, (3, 32, 48), 28, (4, 6),
        [0, 25, 26, 27],
    ),
    "spectrogram": (
        "ASTModel", "ASTConfig", {**_WIDTHS, "max_length": 64, "num_mel_bins": 36}, (64, 36), 17,
        (5, 3), [0, 1],
    ),
    "waves": (
        "Wav2Vec2Model", "Wav2Vec2Config",
        {**_WIDTHS, "conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16,
         "num_conv_pos_embedding_groups": 4},
        (4000,), 12, None, None,
    ),
    "film": (
        "VideoMAEModel", "VideoMAEConfig", {**_IMAGE, "num_frames": 4}, (4, 3, 32, 32), 32, None,
        None,
    ),
    "whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, (16, 48), 24, None, None,
    ),
}  # fmt: skip
WINDOWED = {
    "swin": ("SwinModel", "SwinConfig", {
        "image_size": 32, "patch_size": 4, "window_size": 4, "depths": [1, 1], "num_heads": [4, 4],
        "embed_dim": 32,
    }),
    "sam": ("SamVisionModel", "SamVisionConfig", {
        **_IMAGE, "window_size": 2, "output_channels": 16, "mlp_dim": 48,
    }),
    "pooled keys": ("SegformerModel", "SegformerConfig", {
        "hidden_sizes": [32] * 4, "depths": [1] * 4, "num_attention_heads": [4] * 4,
    }),
    "side by side": ("PixtralVisionModel", "PixtralVisionConfig", {**_IMAGE, "head_dim": 8}),
    "masked at random": ("ViTMAEModel", "ViTMAEConfig", _IMAGE),
}  # fmt: skip


def build(name, **changes):
    """A model with weights that move attention off even."""
    kind, config, options, *_ = MODELS.get(name) or WINDOWED[name]
    torch.manual_seed(0)
    built = getattr(transformers, kind)(getattr(transformers, config)(**{**options, **changes}))
    with torch.no_grad():
        for weight in built.parameters():
            if weight.ndim > 1:
                weight.add_(0.1 * torch.randn(weight.shape))
    return built.eval()


def signals(name, n=2):
    """Noise of the model's shape."""
    return torch.randn((n, *MODELS[name][3]), generator=torch.Generator().manual_seed(1))
