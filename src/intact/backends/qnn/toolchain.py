"""Other versions of the vendor's library than the one beside intact, each in an environment of its own."""

from __future__ import annotations

from intact.runtime.toolchains import Recipe

TOOLCHAIN = Recipe(
    name="qnn",
    package="onnxruntime-qnn",
    # The usual one is the extra `qnn`: it gets along with our packages, and so do other versions, which ask for the
    # same ones. They run with ours, ONNX Runtime among them.
    version=None,
    requirements=("onnxruntime-qnn=={version}",),
    check="intact.backends.qnn.job:compile_one",
    pythons=(),
    bytes=300_000_000,
    hint="choose another version of onnxruntime-qnn: this one needs another ONNX Runtime or system than is here",
    beside=True,
)
