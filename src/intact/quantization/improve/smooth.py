"""Moves the difficulty of outlying channels from activations into weights (SmoothQuant, Xiao et al., 2022).

The scales of a tensor are folded into a normalization before it if nothing else reads it; otherwise one Mul in front
of the layers carries them. How far to go is chosen for each tensor: the exponent with the least error expected in the
layers' outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from intact.quantization.improve.channel_ranges import Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.fold import Fold
from intact.quantization.improve.site import Layers, LayerSite
from intact.records import dataclass
from intact.results import QuantPlan

# Beyond 0.7 every channel would end at the limit of the grid, with no room for values that calibration has not seen.
_EXPONENTS = [(float(exponent), 1 - float(exponent)) for exponent in np.linspace(0.0, 0.7, 15)]
# How many times less error must be expected: smoothing takes room from channels that new values may need, and where no
# channel stands out it costs more than it gains (measured on trained and random transformers).
_WORTH_IT = 2.5


@dataclass(slots=True)
class Smoothing:
    """A tensor in 8 bits that matrix products read."""

    site: LayerSite
    by_node: bool

    @classmethod
    def of(
        cls, layers: Layers, fold: Fold | None, plan: QuantPlan, on_grid: Collection[str] | None
    ) -> Smoothing | None:
        """A site for `layers`, if their tensor can be smoothed.

        `on_grid` are the tensors that are written as integers, behind which a Mul would round once more; None allows
        no Mul at all.
        """
        eight_bits = all(plan.nodes[weight.node] in ("uint8", "int8") for _, weight in layers.readers)
        by_node = fold is None and on_grid is not None and layers.source.name not in on_grid
        if layers.axis != -1 or not eight_bits or not (fold or by_node):
            return None
        return cls(LayerSite.of(layers, fold, _EXPONENTS, plan), by_node)

    def watched(self) -> Iterator[tuple[str, Channels]]:
        """The tensor that is smoothed."""
        return self.site.watched()

    def apply(self, editor: Editor) -> str | None:
        """Fold the scales, or put a Mul there, if the gain is worth it."""
        scales, gain, readers = self.site.best()
        if gain < _WORTH_IT:
            return None
        source, fold = self.site.layers.source, self.site.fold
        if fold is not None:
            editor.divide(fold, scales)
        else:
            smoothed = editor.divide_by_node(source, scales)
            for reader in readers:
                reader.node.replace_input_with(0, smoothed)
        for reader in readers:
            editor.replace(reader.node, reader.plan.index, reader.multiplied(scales))
        return source.name
