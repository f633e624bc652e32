"""Prune heads by one or several methods, and measure what that costs on held-out text."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...interp.errors import InputError
from ...interp.frames import is_edited
from ...interp.plain_text import counted
from ...interp.probes import MIN_PROMPTS
from ...interp.sites import check_model, unbridged
from ...interp.texts import Documents
from ..ablate.evaluate import Progress, evaluate, measured_rows
from ..ablate.said import REPEATED, TEXT
from ..atlas import HeadAtlas
from ..fingerprint import fingerprint_model, fingerprint_prompts
from .asked import Asked, check_asked
from .choose import Chooser
from .curve import Cut, Losses, curve_of, differences_of
from .folder import begin, finished_result
from .gate_result import GateResult
from .held_out import Material, Reading, read_material
from .progress_file import ProgressFile, loss_key
from .prune_file import GATE_COLUMNS, LABEL_COLUMNS, check_folder
from .prune_result import PruneResult, Source
from .settings import GateTraining
from .survivors import labels_of
from .working_copy import with_weights

Watch = Callable[[Mapping[str, Any]], None]
"""Called after each update of gates with its row of the history, and what was `asked` for."""

_TOGETHER = 16  # cuts measured between two writes of the unfinished state


def prune_heads(
    model: Any,
    tokenizer: Any,
    texts: Any = None,
    *,
    eval_texts: Any = None,
    method: str | Sequence[str] = "l0",
    sparsity: float | Collection[float] | None = None,
    lam: float | Collection[float] | None = None,
    config: GateTraining | None = None,
    atlas: HeadAtlas | None = None,
    draws: int = 10,
    train_documents: int | None = 256,
    eval_documents: int = 64,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    level: float = 0.95,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> PruneResult:
    """Choose heads by every method asked, remove them, and measure the loss on held-out text.

        Δ loss = loss without the heads − loss of the whole model     nats/token

    on text that nothing was learnt from, and at the second copies of repeated random tokens, with
    paired bootstrap intervals. All methods learn from the same documents; removed heads are at zero
    ablation, which is what cutting them out gives. `l0` trains gates once for each sparsity, the
    smallest first, each from the gates of the one before. With `config.finetune` its cuts are
    measured with the weights that were trained along, against the given model; those of the other
    methods with the given weights.

    Args:
        model: a transformers decoder with a language-model head. It is not changed.
        tokenizer: its tokenizer; None will do for ids.
        texts: to learn from: what `read_documents` takes, or `Documents`; None: text that the model
            writes itself, seeded.
        eval_texts: to measure on, likewise; None: up to a third of the documents of `texts` is held
            out. It must not share text with `texts`.
        method: one or several of `METHODS`; the first is compared with the others.
        sparsity: one or several shares of heads to remove, in (0, 1); None: what `config` says, or
            one half, unless `lam` is given.
        lam: one or several prices of a head in nats/token instead, for `l0`: what closes at that
            price is removed. Other methods then remove as many.
        config: how gates are trained; `sparsity` or `lam`, if given, replace its own.
        atlas: labels of the model, for `functional` and for `PruneResult.survivors`.
        draws: of `random` and `layer_random`.
        train_documents: documents to learn from, at most; None: all that there are.
        eval_documents: documents of either sort to measure on; text gives at most as many (of
            `Documents` a seeded choice), and under 16 give no interval.
        seq_len: tokens per document; None: 128, or the model's context.
        prepend_bos: True, False, or None for the tokenizer's habit.
        level: simultaneous coverage of the intervals.
        seed: of text, split, draws, bootstrap, and of the gates where `config` is None.
        folder: where results are written as they come, and from where an interrupted run goes on.
            None: nowhere; `PruneResult.save` writes the result.
        progress: called with (stage, done, total).
        watch: called after each update of gates with its row of the history.

    Returns:
        The curve of every method, and the heads. With `folder`, it has been saved there.

    Raises:
        InputError: no decoder, an unknown method, a target out of (0, 1), text that overlaps or
            cannot be read, a folder of something else, `functional` without an atlas.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.interp.grammar import natural_text
        >>> model, tokenizer = ha.load("tiny")
        >>> result = prune_heads(
        ...     model, tokenizer, [natural_text(900, seed=1)], method=("michel", "random"),
        ...     sparsity=0.25, draws=2, seq_len=32,
        ... )
        >>> len(result.removed("michel", 0.25)), result.curve["method"].tolist()
        (8, ['whole', 'michel', 'random', 'random'])

    Reference:
        Voita 2019; Michel 2019; Louizos 2018.
    """
    model = unbridged(model)
    asked = check_asked(model, method, sparsity, lam, config, atlas, draws, level, seed)
    reading = asked.reading(model, train_documents, eval_documents, seq_len, prepend_bos)
    place = None if folder is None else check_folder(folder)
    if is_edited(model):
        raise InputError("the model is inside an attach block; prune it outside.")
    material = read_material(model, tokenizer, texts, eval_texts, reading)
    run = _Run(check_model(model), tokenizer, material, asked, reading, place, progress, watch)
    return run.finish()


@dataclass
class _Run:
    """Everything of one call of `prune_heads`."""

    model: Any
    tokenizer: Any
    material: Material
    asked: Asked
    reading: Reading
    folder: Path | None
    progress: Progress | None
    watch: Watch | None
    identity: dict[str, str] = field(default_factory=dict)

    def finish(self) -> PruneResult:
        """Choose, measure and write, method after method."""
        kept, place = None, self.folder
        self.identity.update(self._identify())
        if place is not None:
            done = finished_result(place, self.identity, self._compared())
            if done is not None:
                return replace(done, source=Source(self.model, self.tokenizer, {}))
            kept = begin(place)
        file = ProgressFile(None if kept is None else kept / "progress.json", self.identity)
        chooser = Chooser(
            self.model, self.material.train, self.asked, file, kept, self.progress, self.watch
        )
        cuts, result = list[Cut](), None
        found: dict[str, list[Losses]] = {TEXT: [], REPEATED: []}
        order = self.asked.order
        for number, method in enumerate(order):
            new = chooser.cuts(method)
            for documents, losses in found.items():
                losses.append(self._measured(documents, new, chooser, file))
            cuts += new
            result = self._result(cuts, found, chooser, number + 1 == len(order))
            if place is not None:
                result = _saved(result, place)
        if kept is not None:
            shutil.rmtree(kept)
        assert result is not None  # there is a method at least
        return result

    def _measured(
        self, documents: str, cuts: Sequence[Cut], chooser: Chooser, file: ProgressFile
    ) -> Losses:
        """The losses of some cuts, those that are not kept measured anew."""
        read = self.material.text if documents == TEXT else self.material.repeated
        tuned = {cut: chooser.weights_key(cut) for cut in cuts}
        keys = [loss_key(documents, cut.heads, tuned[cut]) for cut in cuts]
        whole = loss_key(documents, ())
        missing = {
            key: cut
            for key, cut in zip(keys, cuts, strict=True)
            if file.losses(key, len(read)) is None
        }
        if file.losses(whole, len(read)) is None:
            missing = {whole: Cut("", 0, 0.0, ()), **missing}
        for group in _groups(missing):
            model, reference = self._models(next(iter(group.values())), chooser)
            one = evaluate(
                model, read, [cut.heads for cut in group.values()],
                progress=self.progress, **reference,
            )  # fmt: skip
            file.keep_losses({key: (one.loss[row], one.kl[row]) for row, key in enumerate(group)})
        figures = [file.losses(key, len(read)) for key in (whole, *keys)]
        loss, kl = np.stack([one for one in figures if one is not None], axis=1)
        n = measured_rows(read.prompts).sum(1)
        return Losses(read, n, loss[0], loss[1:], kl[1:])

    def _models(self, cut: Cut, chooser: Chooser) -> tuple[Any, dict[str, Any]]:
        """The model whose heads are removed, and what it is compared with."""
        if not cut.finetuned:
            return self.model, {}
        weights = chooser.trained[cut.asked].weights or {}
        return with_weights(self.model, weights), {"reference": self.model}

    def _result(
        self,
        cuts: list[Cut],
        found: dict[str, list[Losses]],
        chooser: Chooser,
        finished: bool,
    ) -> PruneResult:
        asked = self.asked
        # as asked for, whatever was measured first
        places = sorted(range(len(cuts)), key=lambda i: asked.methods.index(cuts[i].method))
        ordered = tuple(cuts[place] for place in places)
        losses = {name: _joined(parts, places) for name, parts in found.items()}
        curve = curve_of(
            ordered, losses[TEXT], losses[REPEATED], len(asked.heads), asked.level, asked.seed
        )
        tables = [pd.DataFrame(columns=list(GATE_COLUMNS))]
        for value, trained in chooser.trained.items():
            tables.append(trained.gates.assign(asked=value).loc[:, list(GATE_COLUMNS)])
        labels = pd.DataFrame(columns=list(LABEL_COLUMNS))
        if asked.atlas is not None:
            labels = labels_of(asked.atlas, asked.heads)
        return PruneResult(
            asked.heads, ordered, curve,
            tables[0] if len(tables) == 1 else pd.concat(tables[1:], ignore_index=True),
            differences_of(ordered, losses, asked.level, asked.seed), labels,
            self._caveats(chooser.trained), self._settings(), finished,
            Source(self.model, self.tokenizer, dict(chooser.trained)),
        )  # fmt: skip

    def _caveats(self, trained: Mapping[float, GateResult]) -> tuple[str, ...]:
        said, config = [], self.asked.config
        for value, found in trained.items():
            said += [f"{self.asked.kind} {value:g}: {sentence}" for sentence in found.caveats]
        few = int(measured_rows(self.material.text.prompts).any(1).sum())
        if few < MIN_PROMPTS:
            told = f"{counted(few, 'document')} of held-out text"
            said.append(f"{told}: no interval, which takes {MIN_PROMPTS}.")
        others = [name for name in self.asked.methods if name != "l0"]
        if config is not None and config.finetune is not None and others:
            said.append(f"weights were trained along for l0 alone, not for {', '.join(others)}.")
        if config is not None and config.per != "head" and others:
            said.append(f"whole groups are cut by l0 alone, single heads by {', '.join(others)}.")
        return tuple(said)

    def _settings(self) -> dict[str, Any]:
        material = self.material
        return {
            **self.asked.settings(),
            **dataclasses.asdict(self.reading),
            "identity": dict(self.identity),
            "train": {"origin": material.train.origin, **_size(material.train)},
            "text": {"origin": material.text.origin, **_size(material.text)},
            "repeated": {"origin": material.repeated.origin, **_size(material.repeated)},
        }

    def _compared(self) -> dict[str, Any]:
        """What a finished result must have been asked for, beside its identity."""
        settings = self.asked.settings()
        return {name: settings[name] for name in ("methods", "draws", "atlas")}

    def _identify(self) -> dict[str, str]:
        """What kept numbers depend on; methods may be added to an unfinished run."""
        settings = {
            name: value for name, value in self.asked.settings().items()
            if name not in ("methods", "draws", "atlas")
        }  # fmt: skip
        material = self.material
        return {
            "weights or config": fingerprint_model(self.model),
            "settings": json.dumps(settings, sort_keys=True),
            **{
                name: fingerprint_prompts(own.prompts)
                for name, own in (
                    ("training text", material.train), ("held-out text", material.text),
                    ("repeated tokens", material.repeated),
                )
            },
        }  # fmt: skip


def _saved(result: PruneResult, folder: Path) -> PruneResult:
    """The result as it was written: without a model where heads cannot be cut out of it."""
    pruned, cut = None, result.cut()
    if result.finished and cut.heads:
        try:
            pruned = result.pruned()
        except InputError as error:  # the figures are not lost with it
            told = f"the folder holds no smaller model: {error}"
            result = replace(result, caveats=(*result.caveats, told))
    result.write(folder, cut, pruned)
    return result


def _size(documents: Documents) -> dict[str, int]:
    return {"documents": len(documents), "tokens": int(documents.prompts.mask.sum())}


def _groups(missing: Mapping[str, Cut]) -> list[dict[str, Cut]]:
    """Cuts to measure in one go: of the same weights, and not too many."""
    plain = [(key, cut) for key, cut in missing.items() if not cut.finetuned]
    groups = [dict(plain[at : at + _TOGETHER]) for at in range(0, len(plain), _TOGETHER)]
    return [*groups, *({key: cut} for key, cut in missing.items() if cut.finetuned)]


def _joined(parts: Sequence[Losses], places: Sequence[int]) -> Losses:
    loss, kl = (np.concatenate([getattr(one, name) for one in parts]) for name in ("loss", "kl"))
    return replace(parts[0], loss=loss[places], kl=kl[places])
