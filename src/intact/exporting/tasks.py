"""Tasks of Hugging Face models: the class that each is loaded as, and the class name that tells it."""

from __future__ import annotations

from collections.abc import Sequence

from intact.settings.config import ExportTask

ANY_TASK: ExportTask = "feature-extraction"

# Each class is one of transformers' own; an architecture named in a config ends like the class of its task.
CLASSES: dict[ExportTask, str] = {
    "feature-extraction": "AutoModel",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "object-detection": "AutoModelForObjectDetection",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "depth-estimation": "AutoModelForDepthEstimation",
}


def task_of(architectures: Sequence[str]) -> ExportTask | None:
    """The task whose class the first architecture ends like, or None where no task is known for it."""
    if not architectures:
        return None
    heads = {name.removeprefix("AutoModel"): task for task, name in CLASSES.items() if task != ANY_TASK}
    found = next((task for head, task in heads.items() if architectures[0].endswith(head)), None)
    return ANY_TASK if found is None and architectures[0].endswith("Model") else found
