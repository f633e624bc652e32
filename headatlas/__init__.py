"""Headatlas: what each attention head of a transformer does, with evidence.

The front door is flat and lazy: `import headatlas` loads nothing heavy, and each name below is
imported from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the file that defines it
_HOMES = {
    "HeadAtlas": "circuits.atlas",
    "classify": "circuits.classify",
    "score": "circuits.score",
    "Rule": "circuits.grade",
    "KINDS": "circuits.kinds",
    "Kind": "circuits.kind",
    "Labels": "circuits.label_vectors",
    "register": "circuits.kinds",
    "Behaviour": "circuits.behaviour",
    "Downstream": "circuits.behaviour",
    "causal_effects": "circuits.causal.effects",
    "CausalRule": "circuits.causal.evidence",
    "sweep": "circuits.causal.sweep",
    "run_plan": "circuits.plans.run",
    "load_plan": "circuits.plans.result",
    "read_plan": "circuits.plans.plan_file",
    "forecast_plan": "circuits.plans.forecast",
    "ablate_heads": "circuits.ablate.ablate",
    "ablation_sweep": "circuits.ablate.ablate",
    "evaluate": "circuits.ablate.evaluate",
    "repeated_probe": "circuits.ablate.evaluate",
    "read_documents": "interp.texts",
    "Documents": "interp.texts",
    "set_effect": "circuits.causal.sets",
    "pairwise_ablation": "circuits.causal.sets",
    "trace_induction": "circuits.causal.trace",
    "composition": "circuits.weights.compose",
    "head_circuits": "circuits.weights.head_circuits",
    "ov_scores": "circuits.weights.ov_scores",
    "redundancy": "circuits.weights.redundancy",
    "WordKind": "circuits.words.kind",
    "register_words": "circuits.words.kinds",
    "score_words": "circuits.words.score",
    "word_prompts": "circuits.words.prompts",
    "retrieval_scores": "circuits.retrieval",
    "in_context_scores": "circuits.in_context",
    "stability": "circuits.stability",
    "GateTraining": "circuits.prune.settings",
    "GateResult": "circuits.prune.gate_result",
    "prune_heads": "circuits.prune.prune",
    "order_heads": "circuits.prune.methods",
    "PruneResult": "circuits.prune.prune_result",
    "train_gates": "circuits.prune.train",
    "remove_heads": "circuits.prune.remove.remove",
    "removal_report": "circuits.prune.remove.report",
    "save_pruned": "circuits.prune.remove.files",
    "load_pruned": "circuits.prune.remove.files",
    "pruning_of": "circuits.prune.remove.pruning",
    "explore": "circuits.explore",
    "load": "interp.load",
    "cost": "circuits.cost.report",
    "check": "interp.doctor.check",
    "attach": "interp.attach",
    "Edit": "interp.attach",
    "interventions": "interp.interventions",
    "Intervention": "interp.intervention",
    "run": "interp.intervene",
    "intervene": "interp.intervene",
    "head_weights": "interp.weights",
    "HookedAttention": "interp.layers.attention",
    "diagnose_scales": "interp.layers.scale",
    "token_cells": "interp.grid",
    "tokenize": "interp.tokens",
    "windows": "interp.tokens",
    "attention_sites": "interp.sites",
    "HeadId": "interp.heads",
    "KvHeadId": "interp.heads",
    "capture": "interp.capture",
    "load_cache": "interp.capture",
    "Mention": "interp.grammar.values",
    "Parsed": "interp.parsed",
    "by_sentence": "interp.parsed",
    "read_conllu": "interp.conllu",
    "read_mentions": "interp.mentions",
    "read_winogender": "interp.winogender",
    "parse_text": "interp.spacy_text",
    "head_statistics": "interp.statistics",
    "plot_pattern": "interp.plots.pattern",
    "plot_difference": "interp.plots.difference",
    "plot_head_map": "interp.plots.head_map",
    "plot_offsets": "interp.plots.offsets",
    "plot_split": "interp.plots.split",
    "plot_composition": "interp.plots.composition",
    "pattern_image": "interp.plots.image",
    "write_pattern_image": "interp.plots.image",
    "write_figure": "interp.plots.files",
    "InputError": "interp.errors",
    "attention_probe": "kernels.api",
    "Mask": "kernels.api",
    "Match": "kernels.api",
    "ProbeOut": "kernels.api",
    "Scores": "kernels.api",
    "Weights": "kernels.api",
    "use_backend": "kernels.api",
}

_WHOLE = frozenset({"interventions"})  # the file itself

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from .circuits.ablate.ablate import ablate_heads as ablate_heads
    from .circuits.ablate.ablate import ablation_sweep as ablation_sweep
    from .circuits.ablate.evaluate import evaluate as evaluate
    from .circuits.ablate.evaluate import repeated_probe as repeated_probe
    from .circuits.atlas import HeadAtlas as HeadAtlas
    from .circuits.behaviour import Behaviour as Behaviour
    from .circuits.behaviour import Downstream as Downstream
    from .circuits.causal.effects import causal_effects as causal_effects
    from .circuits.causal.evidence import CausalRule as CausalRule
    from .circuits.causal.sets import pairwise_ablation as pairwise_ablation
    from .circuits.causal.sets import set_effect as set_effect
    from .circuits.causal.sweep import sweep as sweep
    from .circuits.causal.trace import trace_induction as trace_induction
    from .circuits.classify import classify as classify
    from .circuits.cost.report import cost as cost
    from .circuits.explore import explore as explore
    from .circuits.grade import Rule as Rule
    from .circuits.in_context import in_context_scores as in_context_scores
    from .circuits.kind import Kind as Kind
    from .circuits.kinds import KINDS as KINDS
    from .circuits.kinds import register as register
    from .circuits.label_vectors import Labels as Labels
    from .circuits.plans.forecast import forecast_plan as forecast_plan
    from .circuits.plans.plan_file import read_plan as read_plan
    from .circuits.plans.result import load_plan as load_plan
    from .circuits.plans.run import run_plan as run_plan
    from .circuits.prune.gate_result import GateResult as GateResult
    from .circuits.prune.methods import order_heads as order_heads
    from .circuits.prune.prune import prune_heads as prune_heads
    from .circuits.prune.prune_result import PruneResult as PruneResult
    from .circuits.prune.remove.files import load_pruned as load_pruned
    from .circuits.prune.remove.files import save_pruned as save_pruned
    from .circuits.prune.remove.pruning import pruning_of as pruning_of
    from .circuits.prune.remove.remove import remove_heads as remove_heads
    from .circuits.prune.remove.report import removal_report as removal_report
    from .circuits.prune.settings import GateTraining as GateTraining
    from .circuits.prune.train import train_gates as train_gates
    from .circuits.retrieval import retrieval_scores as retrieval_scores
    from .circuits.score import score as score
    from .circuits.stability import stability as stability
    from .circuits.weights.compose import composition as composition
    from .circuits.weights.head_circuits import head_circuits as head_circuits
    from .circuits.weights.ov_scores import ov_scores as ov_scores
    from .circuits.weights.redundancy import redundancy as redundancy
    from .circuits.words.kind import WordKind as WordKind
    from .circuits.words.kinds import register_words as register_words
    from .circuits.words.prompts import word_prompts as word_prompts
    from .circuits.words.score import score_words as score_words
    from .interp import interventions as interventions
    from .interp.attach import Edit as Edit
    from .interp.attach import attach as attach
    from .interp.capture import capture as capture
    from .interp.capture import load_cache as load_cache
    from .interp.conllu import read_conllu as read_conllu
    from .interp.doctor.check import check as check
    from .interp.errors import InputError as InputError
    from .interp.grammar.values import Mention as Mention
    from .interp.grid import token_cells as token_cells
    from .interp.heads import HeadId as HeadId
    from .interp.heads import KvHeadId as KvHeadId
    from .interp.intervene import intervene as intervene
    from .interp.intervene import run as run
    from .interp.intervention import Intervention as Intervention
    from .interp.layers.attention import HookedAttention as HookedAttention
    from .interp.layers.scale import diagnose_scales as diagnose_scales
    from .interp.load import load as load
    from .interp.mentions import read_mentions as read_mentions
    from .interp.parsed import Parsed as Parsed
    from .interp.parsed import by_sentence as by_sentence
    from .interp.plots.composition import plot_composition as plot_composition
    from .interp.plots.difference import plot_difference as plot_difference
    from .interp.plots.files import write_figure as write_figure
    from .interp.plots.head_map import plot_head_map as plot_head_map
    from .interp.plots.image import pattern_image as pattern_image
    from .interp.plots.image import write_pattern_image as write_pattern_image
    from .interp.plots.offsets import plot_offsets as plot_offsets
    from .interp.plots.pattern import plot_pattern as plot_pattern
    from .interp.plots.split import plot_split as plot_split
    from .interp.sites import attention_sites as attention_sites
    from .interp.spacy_text import parse_text as parse_text
    from .interp.statistics import head_statistics as head_statistics
    from .interp.texts import Documents as Documents
    from .interp.texts import read_documents as read_documents
    from .interp.tokens import tokenize as tokenize
    from .interp.tokens import windows as windows
    from .interp.weights import head_weights as head_weights
    from .interp.winogender import read_winogender as read_winogender
    from .kernels.api import Mask as Mask
    from .kernels.api import Match as Match
    from .kernels.api import ProbeOut as ProbeOut
    from .kernels.api import Scores as Scores
    from .kernels.api import Weights as Weights
    from .kernels.api import attention_probe as attention_probe
    from .kernels.api import use_backend as use_backend


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'headatlas' has no attribute {name!r}; it has {sorted(_HOMES)}"
        )
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = home if name in _WHOLE else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
