"""Tiny random models of transformers' encoders of images and sounds.

The families are bare models that attend and read pixel_values, input_features or input_values, of
which a small one runs on that alone. Whisper counts among the decoders, after its classes.
"""

from __future__ import annotations

from typing import Any

import torch

from headatlas.interp.signals import probe_signal

FAMILIES = {
    "image encoder": (
        "aimv2_vision_model", "beit", "chinese_clip_vision_model", "clip_vision_model", "cvt",
        "data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "donut-swin",
        "dpt", "glpn", "hiera", "ijepa", "internvl_vision", "maskformer-swin", "mgp-str", "mlcd",
        "mlcd_vision_model", "mobilevit", "pixio", "pixtral", "pvt", "pvt_v2",
        "qianfan_ocr_vision", "radio", "sam3_vision_model", "sam_hq_vision_model",
        "sam_vision_model", "sapiens2", "segformer", "siglip_vision_model", "swiftformer", "swin",
        "swinv2", "timesformer", "tipsv2_vision_model", "videomae", "vit", "vit_mae", "vit_msn",
        "vitdet", "vivit", "yolos",
    ),
    "sound encoder": (
        "audio-spectrogram-transformer", "canary", "cohere_asr", "data2vec-audio",
        "glmasr_encoder", "granite_speech5_ctc", "granite_speech5_encoder", "hubert", "lasr_ctc",
        "lasr_encoder", "mimi_encoder", "moonshine", "moss_transcribe_diarize_audio",
        "nemotron3_5_transcribe_asr_audio", "nemotron3_diarization_audio",
        "nemotron_asr_streaming_encoder", "omniasr_audio", "omniasr_ctc", "parakeet_ctc",
        "parakeet_encoder", "pe_audio_encoder", "pocket_tts_audio_tokenizer_encoder",
        "qwen2_audio_encoder", "sew", "sew-d", "speech_to_text", "unispeech", "unispeech-sat",
        "voxtral_encoder", "voxtral_realtime_encoder", "wav2vec2", "wav2vec2-bert",
        "wav2vec2-conformer", "wavlm",
    ),
}  # fmt: skip
_SWIN = {"image_size": 32, "patch_size": 4, "window_size": 4, "depths": [1, 1], "num_heads": [4, 4]}
OWN: dict[str, dict[str, Any]] = {"donut-swin": _SWIN, "swin": _SWIN, "swinv2": _SWIN}
# beside those of language models
SMALL = {
    "image_size": 32, "patch_size": 8, "num_mel_bins": 16, "max_source_positions": 32,
    "max_length": 64, "num_frames": 4, "tubelet_size": 2, "mlp_ratio": 2, "embed_dim": 32,
    "depths": 1, "window_size": 2, "hidden_sizes": 32, "encoder_hidden_size": 32,
    "decoder_hidden_size": 32, "decoder_intermediate_size": 48, "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 4, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "codevector_dim": 16, "proj_codevector_dim": 16,
    "num_codevectors_per_group": 8, "subsampling_conv_channels": 8, "n_mels": 16,
    "projection_dim": 16, "vision_use_head": False, "output_hidden_size": 32,
}  # fmt: skip


def run(model: Any, _: str) -> None:
    """Run a model once on noise of a shape that it takes."""
    more: dict[str, Any] = {}
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = torch.arange(6).reshape(2, 3)
    with torch.no_grad():
        probe_signal(model, 2, more)
