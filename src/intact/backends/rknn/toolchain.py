"""The vendor's compiler and simulator, which conflict with our packages and have an environment of their own."""

from __future__ import annotations

from intact.runtime.toolchains import Recipe

TOOLCHAIN = Recipe(
    name="rknn",
    package="rknn-toolkit2",
    version="2.5.0",
    # All that `from rknn.api import RKNN`, a build and a run import, seen to work together. The package itself asks for
    # older versions of torch and for opencv-python with its windows; both are left out.
    requirements=(
        "rknn-toolkit2=={version}",
        "coloredlogs==15.0.1",
        "fast-histogram==0.14",
        "filelock==4.2.10",
        "flatbuffers==25.12.19",
        "fsspec==2026.9.0",
        "humanfriendly==10.0",
        "jinja2==3.1.6",
        "markupsafe==3.0.4",
        "mpmath==1.3.0",
        "networkx==3.6.1",
        "numpy==1.26.4",
        "onnx==1.16.2",
        "onnxruntime==1.23.2",
        "opencv-python-headless==4.11.0.86",
        "packaging==26.3",
        "protobuf==4.25.4",
        "psutil==7.2.2",
        "ruamel.yaml==0.19.1",
        "scipy==1.17.1",
        # It imports pkg_resources, which later ones do not have.
        "setuptools==65.5.0",
        "sympy==1.14.0",
        "torch==2.13.0",
        "tqdm==4.70.1",
        "typing-extensions==4.16.0",
    ),
    check="intact.backends.rknn.toolchain_check:compile_one",
    pythons=("3.11", "3.12"),
    bytes=1_600_000_000,
    hint="its torch has to be a build for the CPU: name a place that has one to pip (PIP_EXTRA_INDEX_URL or "
    "PIP_FIND_LINKS) and install again",
)
