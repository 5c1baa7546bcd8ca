"""Hugging Face models, made here with random weights: exported, compared with torch, and built for an NPU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from intact import data
from intact.api import request
from intact.cli.main import app
from intact.errors import DataError, IntactError, ModelError, SettingsError, ToolchainError
from intact.exporting import huggingface, origin, processor, tasks
from intact.model import io
from intact.results import Origin
from intact.runtime import hub, process
from intact.settings.config import BuildConfig, ExportConfig

PACKAGES = ("torch", "transformers", "onnxscript")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_hf = pytest.mark.skipif(bool(MISSING), reason=f"not installed (extra: hf): {', '.join(MISSING)}")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(59))]
PIXELS = {"do_rescale": True, "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def made(folder, config, model, values, words=()):
    request = {"folder": str(folder), "config": config, "model": model, "values": values, "words": list(words)}
    process.call("tests.exporting.models:make", request, timeout=300)
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "text"
    values = {**SMALL, "vocab_size": len(WORDS), "max_position_embeddings": 24}
    return made(folder, "BertConfig", "BertForSequenceClassification", values, WORDS)


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        huggingface.export(str(bert), path)
    return path


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "image"
    made(folder, "ViTConfig", "ViTForImageClassification", {**SMALL, "image_size": 16, "patch_size": 8})
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    lines = [" ".join(f"w{(row * step) % 59}" for step in range(1, 3 + row % 9)) for row in range(1, 17)]
    path.write_text("\n\n".join([*lines, " ".join(["w1"] * 40)]) + "\n")
    return path


def shapes(path):
    return {value.name: list(value.shape) for value in io.load(path).graph.inputs}


TASKS = [
    (["TinyForSequenceClassification"], "text-classification"),
    (["TinyForTokenClassification"], "token-classification"),
    (["TinyForQuestionAnswering"], "question-answering"),
    (["TinyForMaskedLM"], "fill-mask"),
    (["TinyForImageClassification"], "image-classification"),
    (["TinyModel"], "feature-extraction"),
    (["TinyForCausalLM"], None),
    ([], None),
]


@pytest.mark.parametrize(("architectures", "task"), TASKS)
def test_the_architecture_of_a_config_tells_the_task(architectures, task):
    assert tasks.task_of(architectures) == task


@pytest.mark.parametrize(
    ("config", "settings", "size"),
    [
        ({"image_size": 16}, {"size": {"height": 8, "width": 8}}, [16, 16]),
        ({"image_size": [16, 24]}, {}, [16, 24]),
        ({}, {"size": {"height": 8, "width": 12}}, [8, 12]),
        ({}, {"size": {"shortest_edge": 20}}, [20, 20]),
        (
            {},
            {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 14, "width": 14}},
            [14, 14],
        ),
        ({}, {}, None),
    ],
)
def test_the_size_of_images_is_that_of_the_model_or_else_of_its_processor(config, settings, size):
    assert processor.image_size(type("Config", (), config)(), settings) == size


@pytest.mark.parametrize(
    "settings",
    [
        PIXELS,
        {**PIXELS, "rescale_factor": 1 / 127.5},
        {**PIXELS, "do_rescale": False},
        {**PIXELS, "do_normalize": False},
    ],
)
def test_mean_and_deviation_come_to_what_the_image_processor_does(settings):
    pixel = np.array([0.0, 100.0, 255.0])
    value = pixel * (settings.get("rescale_factor", 1 / 255) if settings["do_rescale"] else 1)
    if settings["do_normalize"]:
        value = (value - settings["image_mean"]) / np.array(settings["image_std"])
    found = processor.pixels(settings)
    np.testing.assert_allclose((pixel / 255 - found["mean"]) / np.array(found["std"]), value, rtol=1e-12)


def test_an_output_that_is_not_what_torch_computed_is_named(tmp_path):
    answers, model = tmp_path / "answers.npz", tmp_path / "model.onnx"
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(x) }"""
    io.save(ir.from_onnx_text(text), model)
    x = np.array([1, -2], np.float32)
    np.savez(answers, **{"0/in/x": x, "0/out/y": -x, "0/out/z": x})
    with pytest.raises(ModelError, match="output z is"):
        huggingface._compare(model, answers, 1, "some/model")


def test_an_origin_is_read_from_the_file_that_carries_it(zoo, tmp_path):
    known = Origin("a/b", "c0ffee", "fill-mask", True, "T", "00", {"torch": "2"}, 99.0, {"mean": [0.5]})
    io.save(origin.marked(io.load(zoo.model("residual_cnn")), known), tmp_path / "model.onnx")
    assert origin.of_model(io.load(tmp_path / "model.onnx")) == known
    assert origin.of_model(io.load(zoo.model("residual_cnn"))) is None


def test_an_origin_that_somebody_else_wrote_is_an_error_of_the_model(zoo):
    model = io.load(zoo.model("residual_cnn"))
    model.metadata_props[origin.KEY] = '{"name": "a/b"}'
    with pytest.raises(ModelError, match=r"intact\.origin"):
        origin.of_model(model)


@pytest.mark.parametrize(
    ("known", "images", "words"),
    [
        (True, None, []),
        (True, {"mean": [0.5]}, []),
        (False, None, ["no known task"]),
        (True, {}, ["how pixels are scaled"]),
    ],
)
def test_what_a_model_does_not_say_is_a_warning(known, images, words):
    found = origin.warnings(Origin("a/b", None, "fill-mask", known, "T", "00", {}, None, images))
    assert [word in text for word, text in zip(words, found, strict=True)] == [True] * len(words)


@pytest.mark.parametrize("text", ["./nothing", "/nothing/at/all", "a/b/c", "README.md"])
def test_what_is_neither_a_folder_nor_an_id_is_refused(text, monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    with pytest.raises(ModelError, match="neither a folder nor an id"):
        hub.resolved(text)


def test_a_revision_follows_the_id():
    assert hub.resolved("some/model@v2") == hub.Repository("some/model", "v2")
    assert hub.resolved("model") == hub.Repository("model", None)


def test_missing_packages_are_named_with_the_extra():
    with pytest.raises(ToolchainError, match="no_such_package") as error:
        hub.require("json", "no_such_package")
    assert "intact[hf]" in str(error.value) and error.value.status == 5


def test_text_without_a_tokenizer_is_refused(zoo, sentences):
    with pytest.raises(DataError, match="--tokenizer"):
        data.load(io.load(zoo.model("residual_cnn")), str(sentences), samples=8)


def test_inputs_are_prepared_as_the_model_says_unless_the_user_does(sentences, tmp_path, monkeypatch):
    known = Origin("a/b@v1", None, "fill-mask", True, "T", "00", {}, None, {"mean": [0.5], "std": [0.25]})
    sizes = []
    monkeypatch.setattr(huggingface, "export", lambda *_, image_size, **__: sizes.append(image_size) or known)

    def prepared(path, **more):
        with request.exported("a/b@v1", BuildConfig.from_dict({"quant": {"load_path": str(path)}, **more})) as given:
            return given.config

    assert prepared(sentences).tokenizer == "a/b@v1"
    assert prepared(sentences, tokenizer="c").tokenizer == "c"
    assert prepared("inputs.npz").images == prepared(sentences).images == BuildConfig().images
    pictures = prepared(tmp_path, images={"size": 32, "std": [1.0]})
    assert (pictures.images.mean, pictures.images.std, pictures.images.size) == ((0.5,), (1.0,), None)
    assert sizes[-1] == (32, 32) and pictures.tokenizer is None


def test_settings_of_an_export_are_refused_for_a_file(zoo, tmp_path):
    result = CliRunner().invoke(
        app, ["plan", str(zoo.model("residual_cnn")), "--task", "fill-mask", "-o", str(tmp_path / "p")]
    )
    assert isinstance(result.exception, SettingsError) and result.exception.code == "S149"


def test_a_file_and_a_hugging_face_model_are_two_models(zoo, tmp_path):
    result = CliRunner().invoke(app, ["plan", str(zoo.model("residual_cnn")), "--hf", "a/b", "-o", str(tmp_path / "p")])
    assert isinstance(result.exception, SettingsError) and result.exception.code == "S141"


@needs_hf
def test_an_id_without_a_network_is_an_error_of_the_environment(tmp_path):
    with pytest.raises(ToolchainError, match="cannot be fetched from the hub") as error:
        huggingface.export("some/model", tmp_path / "model.onnx")
    assert error.value.code == "E151" and list(tmp_path.iterdir()) == []


@needs_hf
def test_a_text_model_is_exported_with_fixed_shapes_and_names(bert, exported):
    found = origin.of_model(io.load(exported))
    assert (found.task, found.architecture) == ("text-classification", "BertForSequenceClassification")
    assert found.sqnr_db is None or found.sqnr_db > 100
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert shapes(exported) == {name: [1, 24] for name in names}
    assert [value.name for value in io.load(exported).graph.outputs] == ["logits"]
    assert found.config_sha256 == hashlib.sha256((bert / "config.json").read_bytes()).hexdigest()
    assert b"site-packages" not in exported.read_bytes()


@needs_hf
@pytest.mark.slow
def test_the_same_model_is_exported_to_the_same_bytes(bert, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        huggingface.export(str(bert), tmp_path / name, ExportConfig(sequence_length=8))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert shapes(tmp_path / "a.onnx")["input_ids"] == [1, 8]


@needs_hf
@pytest.mark.slow
def test_dynamic_shapes_stay_free(bert, tmp_path):
    huggingface.export(str(bert), tmp_path / "model.onnx", ExportConfig(dynamic=True))
    batch, length = io.load(tmp_path / "model.onnx").graph.inputs[0].shape
    assert (batch.value, length.value) == ("batch", "sequence")


@needs_hf
@pytest.mark.parametrize(
    ("settings", "code"),
    [({"task": "fill-mask"}, "M186"), ({"sequence_length": 25}, "S187"), ({"task": "image-classification"}, "M184")],
)
def test_what_the_model_cannot_do_is_refused(bert, tmp_path, settings, code):
    with pytest.raises(IntactError) as error:
        huggingface.export(str(bert), tmp_path / "model.onnx", ExportConfig(**settings))
    assert error.value.code == code


@needs_hf
def test_code_of_the_model_runs_only_on_request(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    auto = {"AutoConfig": "own.OwnConfig"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(SettingsError, match="--trust-remote-code") as error:
        huggingface.export(str(folder), tmp_path / "model.onnx")
    assert error.value.code == "S185" and not (tmp_path / "ran").exists()


@needs_hf
@pytest.mark.slow
def test_a_convolutional_model_takes_the_size_that_is_asked_for(tmp_path):
    values = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    folder = made(tmp_path / "model", "ResNetConfig", "ResNetForImageClassification", values)
    with pytest.raises(SettingsError, match="how large images are"):
        huggingface.export(str(folder), tmp_path / "model.onnx")
    huggingface.export(str(folder), tmp_path / "model.onnx", image_size=(32, 48))
    assert shapes(tmp_path / "model.onnx") == {"pixel_values": [1, 3, 32, 48]}


@needs_hf
@pytest.mark.qnn
def test_text_is_built_whole_for_the_npu_with_its_own_tokenizer(bert, sentences, tmp_path):
    out = tmp_path / "out"
    flags = ["--device", "qnn", "--precision", "w8a16", "--data", str(sentences), "-o", str(out)]
    result = CliRunner().invoke(app, ["build", "--hf", str(bert), *flags, "--json"], catch_exceptions=False)
    manifest = json.loads((out / "manifest.json").read_text())
    assert result.exit_code == 0 and manifest["placement"]["partitions"] == 1
    assert manifest["placement"]["cpu_nodes"] == []
    assert manifest["calibration"]["kind"] == "text" and manifest["calibration"]["samples"] == 13
    assert any("1 of 17 lines" in text for text in manifest["warnings"])
    source = manifest["source"]
    assert source["path"] == str(bert) and source["huggingface"]["task"] == "text-classification"
    assert source["huggingface"]["versions"].keys() == {"torch", "transformers"}
    digests = {item["path"]: item["sha256"] for item in manifest["artifacts"]}
    assert digests["model.float.onnx"] == source["sha256"]


@needs_hf
@pytest.mark.qnn
def test_images_are_prepared_as_the_model_says_and_built_whole_for_the_npu(vit, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pictures, out = tmp_path / "pictures", tmp_path / "out"
    pictures.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 24, 3), np.uint8)
    for number, values in enumerate(pixels):
        image.fromarray(values).save(pictures / f"{number:02}.png")
    flags = ["--device", "qnn", "--precision", "w8a16", "--data", str(pictures), "-o", str(out)]
    result = CliRunner().invoke(app, ["build", "--hf", str(vit), *flags, "--json"], catch_exceptions=False)
    manifest = json.loads((out / "manifest.json").read_text())
    assert result.exit_code == 0 and manifest["placement"]["partitions"] == 1
    assert manifest["config"]["images"]["mean"] == PIXELS["image_mean"]
    assert manifest["config"]["images"]["std"] == PIXELS["image_std"]
    assert shapes(out / "model.float.onnx") == {"pixel_values": [1, 3, 16, 16]}


@needs_hf
def test_lines_become_padded_ids(bert, exported, sentences):
    loaded = data.load(io.load(exported), str(sentences), samples=8, reading=data.Reading(tokenizer=str(bert)))
    first = next(iter(loaded.calibration))
    live = [2, WORDS.index("w1"), WORDS.index("w2"), WORDS.index("w3"), 3]
    np.testing.assert_array_equal(first["input_ids"], [live + [0] * 19])
    np.testing.assert_array_equal(first["attention_mask"], [[1] * 5 + [0] * 19])
    np.testing.assert_array_equal(first["token_type_ids"], np.zeros((1, 24), np.int64))
    assert (len(loaded.calibration), len(loaded.test)) == (8, 4)
