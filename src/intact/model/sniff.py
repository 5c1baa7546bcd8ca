"""Guess from its first bytes the kind of a file that is not an ONNX model."""

from __future__ import annotations

from intact.records import dataclass

HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, the bytes that give it away and where they stand, and what its owner should do."""

    magic: bytes
    kind: str
    fix: str
    offset: int = 0

    def fits(self, head: bytes) -> bool:
        return head.startswith(self.magic, self.offset)


SIGNATURES = (
    FileKind(b"version https://git-lfs", "a git-LFS pointer, not the model that it stands for", "run `git lfs pull`"),
    FileKind(b"PK\x03\x04", "a zip archive (PyTorch's .pt files are such)", "unpack it, or export the model to ONNX"),
    FileKind(b"\x1f\x8b", "a gzip archive", "unpack it first"),
    FileKind(b"\x80\x02", "a Python pickle, which is never opened", "export the model to ONNX"),
    FileKind(b"\x80\x03", "a Python pickle, which is never opened", "export the model to ONNX"),
    FileKind(b"\x80\x04", "a Python pickle, which is never opened", "export the model to ONNX"),
    FileKind(b"\x80\x05", "a Python pickle, which is never opened", "export the model to ONNX"),
    FileKind(b"\x89HDF", "an HDF5 file (Keras saves such)", "export the model to ONNX"),
    FileKind(b"TFL3", "a TensorFlow Lite model", "convert it to ONNX", offset=4),
    FileKind(b"ORTM", "a model in ONNX Runtime's .ort format", "use the .onnx file it was made from", offset=4),
    FileKind(b'{"', "a safetensors file: weights without a graph", "export the model to ONNX", offset=8),
)


def kind_of(head: bytes) -> tuple[str, str] | None:
    """The likely kind of the file and the advice for it, or None if its first bytes say nothing."""
    for signature in SIGNATURES:
        if signature.fits(head):
            return signature.kind, signature.fix
    if _is_text(head):
        return "a text file", "give the binary .onnx file; a download page or a JSON export is not one"
    return None


def _is_text(head: bytes) -> bool:
    printable = sum(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
    return bool(head) and printable == len(head)
