"""The tools that are compared: packages of each, the job that runs it, and the settings that it is run with."""

from __future__ import annotations

from dataclasses import dataclass

ROOT_PACKAGE = "intact"


@dataclass(frozen=True, slots=True)
class Package:
    """What is installed into an environment of its own, and the statement that loads all that quantizing needs."""

    name: str
    requires: tuple[str, ...]
    loads: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to quantize a model: a package, the name of its job in `jobs/`, and the setting that the job takes."""

    label: str
    package: str
    job: str
    setting: str

    @property
    def ours(self) -> bool:
        """True of intact."""
        return self.package == ROOT_PACKAGE

    @property
    def device(self) -> str:
        """The device that the settings are for; empty where they are for none."""
        return self.label.partition(" for ")[2]


_ORT = ("onnxruntime==1.31.1", "onnx==1.23.2")
# The versions of its time: numpy before 2.0 is what it takes.
_INC = ("neural-compressor==2.6", "onnxruntime==1.20.1", "onnx==1.16.2", "six==1.17.0")

PACKAGES = {
    package.name: package
    for package in (
        # Installed from this checkout: see environments.py.
        Package(ROOT_PACKAGE, (), "import intact; intact.quantize"),
        Package("onnxruntime", (*_ORT, "sympy==1.14.0"), "import onnxruntime.quantization"),
        Package("nncf", ("nncf==3.4.0", *_ORT), "import nncf, onnx, nncf.onnx"),
        Package("amd-quark", ("amd-quark==0.13", "onnxruntime==1.31.1", "torch==2.13.0"), "import quark.onnx"),
        Package("aimet-onnx", ("aimet-onnx==2.42.0", *_ORT, "torch==2.13.0"), "import aimet_onnx"),
        Package("nvidia-modelopt", ("nvidia-modelopt[onnx]==0.47.0",), "import modelopt.onnx.quantization"),
        # Later versions quantize no ONNX models. It imports six and does not ask for it.
        Package("neural-compressor", _INC, "import neural_compressor.quantization"),
    )
}

# Tools that would show the figures of another one.
LEFT_OUT = {"olive-ai": "its static quantization of ONNX models is a call of onnxruntime.quantization.quantize_static"}

TOOLS = (
    Tool("intact fast", "intact", "by_intact", "cpu uint8 fast"),
    Tool("intact", "intact", "by_intact", "cpu uint8 normal"),
    Tool("intact for qnn", "intact", "by_intact", "qnn uint8 normal"),
    Tool("intact for rknn", "intact", "by_intact", "rknn int8 normal"),
    Tool("ORT MinMax", "onnxruntime", "by_onnxruntime", "MinMax"),
    Tool("ORT Percentile", "onnxruntime", "by_onnxruntime", "Percentile"),
    Tool("ORT Entropy", "onnxruntime", "by_onnxruntime", "Entropy"),
    Tool("ORT for qnn", "onnxruntime", "by_onnxruntime", "qnn"),
    Tool("NNCF", "nncf", "by_nncf", ""),
    Tool("Quark", "amd-quark", "by_quark", ""),
    Tool("Neural Compressor", "neural-compressor", "by_neural_compressor", ""),
    Tool("AIMET", "aimet-onnx", "by_aimet", "default"),
    Tool("AIMET for qnn", "aimet-onnx", "by_aimet", "htp_v73"),
)
