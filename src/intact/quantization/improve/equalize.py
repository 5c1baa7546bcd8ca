"""Evens out the channels between two layers: one divides its output channels, the next multiplies its input channels.

Between convolutions this is cross-layer equalization (Nagel et al., 2019), across attention that of values and the
output projection. It adds no node and rounds nothing twice, so that a smaller gain than that of smoothing is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intact.quantization.improve.channel_ranges import Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.fold import Fold
from intact.quantization.improve.site import Layers, LayerSite
from intact.records import dataclass
from intact.results import QuantPlan

# Exponents of a channel's reach and of its largest weight: some weigh both, some even out the reach alone.
_EXPONENTS = [
    *((float(exponent), 1 - float(exponent)) for exponent in np.linspace(0.0, 0.7, 8)),
    *((exponent, 0.0) for exponent in (0.25, 0.5, 0.75, 1.0)),
]
# How many times less error must be expected on samples that the scales do not come from. Between the many
# convolutions of a deep residual network smaller gains than two did not add up on unseen images; those across
# attention did.
_WORTH_IT = 1.5
_WORTH_IT_BETWEEN_CONVOLUTIONS = 2.0


@dataclass(slots=True)
class Equalization:
    """A tensor that only layers read, and that layers write."""

    site: LayerSite

    @classmethod
    def of(cls, layers: Layers, fold: Fold, plan: QuantPlan) -> Equalization:
        """A site for `layers`, whose tensor is divided by `fold`."""
        return cls(LayerSite.of(layers, fold, _EXPONENTS, plan))

    def watched(self) -> Iterator[tuple[str, Channels]]:
        """The tensor between the layers, and others on the way that have grids of their own."""
        return self.site.watched()

    def apply(self, editor: Editor) -> str | None:
        """Divide the channels before, multiply those behind, if the gain is worth it."""
        scales, gain, readers = self.site.best()
        if gain < self._worth_it() or self.site.fold is None:
            return None
        editor.divide(self.site.fold, scales)
        for reader in readers:
            editor.replace(reader.node, reader.plan.index, reader.multiplied(scales))
        return self.site.layers.source.name

    def _worth_it(self) -> float:
        convolutions = any(node.op_type == "Conv" for node in self.site.layers.nodes)
        return _WORTH_IT_BETWEEN_CONVOLUTIONS if convolutions else _WORTH_IT
