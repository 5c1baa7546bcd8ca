"""The calibration doctor: each fault is named, and data that are sound are not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.data import Reading, examination, load
from intact.settings.config import ImageConfig
from tests.data.models import model
from tests.zoo import ZOO
from tests.zoo import data as zoo_data
from tests.zoo.variants import VARIANTS
from tests.zoo.variants import rows as variant_rows

RNG = np.random.default_rng(0)

PLAIN = model("float[1, 3, 16, 16] x", "y = Relu (x)")
FEATURES = model("float[1, 40] x", "y = Relu (x)")
TWO = model("float[1, 40] x, float[1, 40] state", "y = Add (x, state)")
TABLE = "float[100, 4] t, int64[1] first = {0}"
WORDS = model("int64[1, 12] x", "y = Gather (t, x)", weights=TABLE)
SEGMENTS = model(
    "int64[1, 12] x, int64[1, 12] kind",
    "a = Gather (t, x) b = Gather (few, kind) y = Add (a, b)",
    weights=f"{TABLE}, float[2, 4] few",
)


@pytest.fixture
def examined(tmp_path):
    """The symptoms of rows on axis 0 of arrays, by kind; `test` are rows of another file."""

    def call(given, rows, test=None, *, images=None):
        paths = []
        for name, arrays in (("calibration", rows), ("test", test)):
            if arrays is not None:
                arrays = arrays if isinstance(arrays, dict) else {"x": arrays}
                np.savez(tmp_path / f"{name}.npz", **arrays)
                paths.append(str(tmp_path / f"{name}.npz"))
        loaded = load(given, paths[0], samples=128, test_source=paths[1] if len(paths) > 1 else None)
        return {
            symptom.kind: symptom
            for symptom in examination.examine(given, loaded.calibration, loaded.test, images=images)
        }

    return call


def floats(*shape, low=0.0, high=1.0):
    return RNG.uniform(low, high, shape).astype(np.float32)


def photographs(count, size=16, channels=3):
    """Smooth colours of 0 to 1, of which each has a pattern of its own."""
    waves = np.linspace(0, 3, size)
    phases = RNG.uniform(0, 6, (count, channels, 1, 1))
    patterns = 0.5 + 0.3 * np.sin(waves[:, None] + waves + phases) + RNG.uniform(-0.1, 0.1, (count, channels, 1, 1))
    return np.clip(patterns + RNG.normal(0, 0.01, (count, channels, size, size)), 0, 1).astype(np.float32)


class TestRowsOfOneValue:
    def test_are_named(self, examined):
        found = examined(PLAIN, np.zeros((24, 3, 16, 16), np.float32))["constant"]
        assert found.doubtful and found.input == "x"
        assert "input x holds one value only (0) in all 18 rows" in found.message

    def test_are_named_where_each_has_a_value_of_its_own(self, examined):
        rows = np.arange(24, dtype=np.float32).reshape(-1, 1, 1, 1) * np.ones((1, 3, 16, 16), np.float32)
        found = examined(PLAIN, rows)
        assert found["constant"].doubtful and "repeated" not in found

    @pytest.mark.parametrize(("black", "named"), [(18, False), (19, True)])
    def test_may_be_three_quarters_of_all(self, examined, black, named):
        rows, test = photographs(24), photographs(8)
        rows[:black] = 0
        assert examined(PLAIN, rows, test).keys() == ({"constant"} if named else set())

    def test_may_be_a_state_that_starts_at_0_beside_an_input_that_varies(self, examined):
        found = examined(TWO, {"x": floats(24, 40), "state": np.zeros((24, 40), np.float32)})
        assert [(kind, one.input, one.doubtful) for kind, one in found.items()] == [("constant", "state", False)]

    def test_may_have_few_elements(self, examined):
        given = model("float[1, 8] x", "y = Relu (x)")
        assert examined(given, np.zeros((24, 8), np.float32)) == {}

    def test_are_named_where_every_word_is_the_same_but_not_where_every_segment_is(self, examined):
        same, words = np.zeros((24, 12), np.int64), RNG.integers(0, 100, (24, 12))
        found = examined(SEGMENTS, {"x": same + 7, "kind": words % 2})
        assert found["constant"].doubtful and found["constant"].input == "x"
        assert examined(SEGMENTS, {"x": words, "kind": same}) == {}


class TestRowsThatRepeat:
    def test_are_named_where_all_are_one(self, examined):
        found = examined(PLAIN, np.repeat(photographs(1), 32, axis=0))["repeated"]
        assert found.doubtful and "24 rows, but only 1 different" in found.message

    @pytest.mark.parametrize(("distinct", "named"), [(10, False), (9, True)])
    def test_may_be_half_of_all(self, examined, distinct, named):
        rows, test = photographs(20), photographs(8)
        rows[distinct:] = rows[0]
        assert ("repeated" in examined(PLAIN, rows, test)) == named

    def test_are_not_named_where_they_are_of_one_value(self, examined):
        assert examined(PLAIN, photographs(24), np.zeros((8, 3, 16, 16), np.float32)).keys() == {"constant"}

    def test_are_named_in_the_test_too(self, examined):
        found = examined(PLAIN, photographs(24), np.repeat(photographs(1), 8, axis=0))
        assert found["repeated"].doubtful and "test.npz" in found["repeated"].message

    def test_are_named_where_all_are_the_same_words(self, examined):
        assert examined(WORDS, np.repeat([np.arange(12)], 24, axis=0))["repeated"].doubtful

    def test_that_were_held_back_are_judged_by_the_file_that_they_are_of(self, examined):
        rows = photographs(24)
        rows[-6:] = rows[-1]
        assert examined(PLAIN, rows) == {}

    def test_may_be_one_hot(self, examined):
        assert examined(FEATURES, np.eye(40, dtype=np.float32)[RNG.integers(0, 5, 100)]) == {}

    def test_may_have_few_elements_or_be_few(self, examined):
        given = model("float[1, 2] x", "y = Relu (x)")
        assert examined(given, np.ones((24, 2), np.float32)) == {}
        assert "repeated" not in examined(PLAIN, np.repeat(photographs(1), 3, axis=0))


class TestCalibrationAndTest:
    @pytest.mark.parametrize(
        ("calibrated", "tested"),
        [((0, 255), (0, 1)), ((0, 1), (0, 255)), ((0, 1), (-1, 1)), ((-2.1, 2.6), (0, 1)), ((0, 1), (2, 3))],
    )
    def test_of_different_ranges_are_named(self, examined, calibrated, tested):
        rows, test = (low + (high - low) * photographs(24) for low, high in (calibrated, tested))
        found = examined(
            FEATURES,
            floats(24, 40, low=calibrated[0], high=calibrated[1]),
            test=floats(24, 40, low=tested[0], high=tested[1]),
        )
        assert found["mismatch"].doubtful and "prepare both alike" in found["mismatch"].message
        assert "mismatch" in examined(PLAIN, rows, test)

    @pytest.mark.parametrize(("factor", "named"), [(3.9, False), (4.2, True)])
    def test_may_differ_by_less_than_four(self, examined, factor, named):
        ramp = np.linspace(-1, 1, 40, dtype=np.float32) + floats(24, 40, high=0.01)
        assert ("mismatch" in examined(FEATURES, np.float32(factor) * ramp, ramp[::-1] * 1.001)) == named

    def test_may_be_loud_and_quiet_in_any_order(self, examined):
        """Recordings whose loudness differs by a hundred, and sparse rows, many of which are empty."""
        for _ in range(50):
            loudness = np.exp(RNG.normal(0, 1.2, (24, 1)))
            assert "mismatch" not in examined(FEATURES, (loudness * RNG.normal(0, 1, (24, 40))).astype(np.float32))
            sparse = floats(24, 40) * (RNG.uniform(0, 1, (24, 40)) < 0.03)
            assert "mismatch" not in examined(FEATURES, sparse.astype(np.float32))

    @pytest.mark.parametrize(("rows", "factor", "named"), [(7, 5, False), (8, 5, True), (7, 40, True), (1, 40, True)])
    def test_of_few_rows_have_to_differ_by_more(self, examined, rows, factor, named):
        for one, other in ((1, factor), (factor, 1)):
            calibrated, tested = np.float32(one) * photographs(24), np.float32(other) * photographs(rows)
            assert ("mismatch" in examined(PLAIN, calibrated, tested)) == named

    def test_of_different_ranges_are_named_where_many_rows_are_empty(self, examined):
        rows = 255 * photographs(30)
        rows[::2] = rows[1:9:4] = 0
        assert examined(PLAIN, rows, photographs(24)).keys() == {"mismatch"}

    def test_that_share_rows_are_named(self, examined):
        rows, test = photographs(24), photographs(8)
        test[:2] = rows[5:7]
        found = examined(PLAIN, rows, test)["overlap"]
        assert not found.doubtful and "2 of 8 test rows are calibration rows" in found.message
        assert examined(PLAIN, rows, rows[:8])["overlap"].doubtful
        assert examined(PLAIN, rows, photographs(8)) == {}

    def test_may_share_one_hot_rows_and_those_of_the_same_file(self, examined):
        hot = np.eye(40, dtype=np.float32)
        assert examined(FEATURES, hot, hot[::-1]) == {}
        rows = photographs(24)
        rows[-3:] = rows[:3]
        assert examined(PLAIN, rows) == {}

    def test_are_not_compared_where_one_was_made_up(self, tmp_path):
        np.savez(tmp_path / "t.npz", x=255 * floats(24, 40))
        loaded = load(FEATURES, None, samples=16, test_source=str(tmp_path / "t.npz"))
        assert examination.examine(FEATURES, loaded.calibration, loaded.test) == ()


ONE = "float one = {1.0}, float far = {-10000.0}, float up = {10000.0}, float nothing = {0.0}, int64 none = {0}"
SCORES = "int64[1, 12] x, float[1, 12] s"
# body: the value that hides
MASKS = {
    "f = Cast <to = 1> (x) r = Sub (one, f) m = Mul (r, far) y = Add (s, m)": 0,
    "f = Cast <to = 1> (x) r = Sub (f, one) m = Mul (r, up) y = Add (s, m)": 0,
    "f = Cast <to = 1> (x) m = Mul (far, f) y = Add (s, m)": 1,
    "b = Cast <to = 9> (x) y = Where (b, s, far)": 0,
    "b = Cast <to = 9> (x) y = Where (b, far, s)": 1,
    "b = Cast <to = 9> (x) n = Not (b) y = Where (n, far, s)": 0,
    "b = Equal (x, none) y = Where (b, far, s)": 0,
    "b = Less (none, x) m = Where (b, nothing, far) y = Add (s, m)": 0,
    "b = Greater (x, none) n = Not (b) y = Where (n, s, far)": 1,
}


class TestMasks:
    @pytest.mark.parametrize(("body", "hides"), MASKS.items())
    def test_that_hide_everything_are_doubtful_and_those_that_hide_nothing_worth_a_word(self, examined, body, hides):
        given = model(SCORES, body, weights=ONE)
        scores = floats(24, 12)
        hiding = examined(given, {"x": np.full((24, 12), hides), "s": scores})["mask"]
        assert (hiding.doubtful, hiding.input) == (True, "x") and "hides everything" in hiding.message
        showing = examined(given, {"x": np.full((24, 12), 1 - hides), "s": scores})["mask"]
        assert not showing.doubtful and "padding is never seen" in showing.message

    @pytest.mark.parametrize(("body", "hides"), MASKS.items())
    def test_that_hide_something_in_one_row_are_sound(self, examined, body, hides):
        live = np.full((24, 12), 1 - hides)
        live[3, 9:] = hides
        assert examined(model(SCORES, body, weights=ONE), {"x": live, "s": floats(24, 12)}) == {}

    def test_that_hide_nothing_in_the_few_rows_held_back_are_sound(self, tmp_path):
        live = np.ones((24, 12), np.int64)
        live[3, 9:] = 0
        np.savez(tmp_path / "d.npz", x=live, s=floats(24, 12))
        given = model(SCORES, next(iter(MASKS)), weights=ONE)
        loaded = load(given, str(tmp_path / "d.npz"), samples=128)
        assert examination.examine(given, loaded.test) == ()

    def test_of_which_the_graph_does_not_say_what_they_hide_are_left_alone(self, examined):
        given = model("bool[1, 12] x", "y = Cast <to = 1> (x)")
        assert examined(given, np.zeros((24, 12), bool)).keys() <= {"repeated"}


class TestIds:
    @pytest.mark.parametrize(("low", "high", "doubtful"), [(0, 100, True), (-101, 99, True), (-1, 99, False)])
    def test_outside_the_table_are_named(self, examined, low, high, doubtful):
        ids = RNG.integers(0, 100, (24, 12))
        ids[0, :2] = low, high
        found = examined(WORDS, ids)["ids"]
        assert found.doubtful == doubtful and "its table has 100 entries, 0 to 99" in found.message

    def test_up_to_the_last_entry_are_sound(self, examined):
        ids = RNG.integers(0, 100, (24, 12))
        ids[0, :2] = 0, 99
        assert examined(WORDS, ids) == {}

    def test_may_be_outside_where_the_model_brings_them_in(self, examined):
        given = model(
            "int64[1, 12] x",
            "c = Clip (x, none, last) y = Gather (t, c)",
            weights=f"{TABLE}, int64 none = {{0}}, int64 last = {{99}}",
        )
        assert examined(given, RNG.integers(-5, 500, (24, 12))) == {}


class TestColours:
    def test_side_by_side_in_an_input_that_has_them_apart_are_named(self, examined):
        rows = photographs(24)
        assert examined(PLAIN, rows) == {}
        found = examined(PLAIN, rows.transpose(0, 2, 3, 1).reshape(rows.shape))["layout"]
        assert found.doubtful and ".transpose(0, 3, 1, 2)" in found.message

    def test_of_noise_and_of_blocks_are_sound(self, examined):
        assert examined(PLAIN, floats(24, 3, 16, 16)) == {}
        assert examined(PLAIN, floats(24, 3, 4, 4).repeat(4, 2).repeat(4, 3)) == {}


CONV = f"float[4, 3, 1, 1] w = {{{', '.join(['0.5', '-0.4', '0.3'] * 4)}}}"
STATISTICS = {"g": 1, "b": 0, "mean": 0.2, "var": 0.02}
NORM = ", ".join([CONV, *(f"float[4] {name} = {{{', '.join([str(x)] * 4)}}}" for name, x in STATISTICS.items())])
BOUND = f"{CONV}, float zero = {{0.0}}, float six = {{6.0}}"
GRID = "float s = {0.00392156862}, uint8 z = {0}"
IMAGES = "float[1, 3, 16, 16] x"


class TestTheFirstLayers:
    @pytest.mark.parametrize(
        ("body", "weights", "factor", "kind"),
        [
            ("c = Conv (x, w) y = BatchNormalization (c, g, b, mean, var)", NORM, 255, "saturation"),
            ("c = Conv (x, w) y = BatchNormalization (c, g, b, mean, var)", NORM, 1 / 255, "saturation"),
            ("c = Conv (x, w) y = Clip (c, zero, six)", BOUND, 25500, "saturation"),
            ("c = Conv (x, w) n = Sigmoid (c) y = Mul (c, n)", CONV, 25500, "saturation"),
            ("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", GRID, 255, "saturation"),
            ("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", GRID, 1 / 255, "saturation"),
            ("a = Sub (x, m) y = Div (a, s)", "float m = {0.485}, float s = {0.229}", 255, "scale"),
            ("a = Mul (x, s) y = Sub (a, m)", "float m = {1.0}, float s = {2.0}", 255, "scale"),
            ("a = Sub (x, m) y = Div (a, s)", "float m = {123.7}, float s = {58.4}", 1, "scale"),
            ("y = Div (x, s)", "float s = {255.0}", 1, "scale"),
            ("a = Sub (x, m) b = Add (a, m) y = Div (b, s)", "float m = {0.5}, float s = {255.0}", 1, "scale"),
            ("y = Mul (x, s)", "float s = {0.00392156862}", 1, "scale"),
        ],
    )
    def test_show_that_rows_have_another_scale(self, examined, body, weights, factor, kind):
        found = examined(model(IMAGES, body, weights=weights), np.float32(factor) * photographs(24))
        assert found[kind].doubtful and found[kind].input == "x"

    @pytest.mark.parametrize(
        ("body", "weights", "factor"),
        [
            ("c = Conv (x, w) y = BatchNormalization (c, g, b, mean, var)", NORM, 1),
            ("c = Conv (x, w) y = BatchNormalization (c, g, b, mean, var)", NORM, 4),
            ("c = Conv (x, w) y = Clip (c, zero, six)", BOUND, 20),
            ("c = Conv (x, w) n = Sigmoid (c) y = Mul (c, n)", CONV, 4),
            ("y = Clip (x, zero, zero)", BOUND, 1),
            ("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", GRID, 1),
            ("a = Sub (x, m) y = Div (a, s)", "float m = {0.485}, float s = {0.229}", 1),
            ("a = Sub (x, m) y = Div (a, s)", "float m = {0.485}, float s = {0.229}", 4),
            ("a = Mul (x, s) y = Sub (a, m)", "float m = {1.0}, float s = {2.0}", 1),
            ("a = Sub (x, m) y = Div (a, s)", "float m = {123.7}, float s = {58.4}", 255),
            ("y = Div (x, s)", "float s = {255.0}", 255),
            # From -1 … 1 to bytes, and a waveform to the scale of 16 bits.
            ("a = Mul (x, s) y = Add (a, s)", "float s = {127.5}", 2),
            ("y = Mul (x, s)", "float s = {32768.0}", 1),
        ],
    )
    def test_take_rows_of_the_right_scale(self, examined, body, weights, factor):
        assert examined(model(IMAGES, body, weights=weights), np.float32(factor) * photographs(24)) == {}

    def test_scale_columns_of_different_units_one_by_one(self, examined):
        centre = spread = np.array([1e-3] * 39 + [1e6])
        numbers = [", ".join(f"{value:.6g}" for value in values) for values in (centre, spread)]
        given = model(
            "float[1, 40] x",
            "a = Sub (x, m) y = Div (a, s)",
            weights=f"float[40] m = {{{numbers[0]}}}, float[40] s = {{{numbers[1]}}}",
        )
        assert examined(given, (centre + spread * RNG.uniform(0.5, 1.5, (24, 40))).astype(np.float32)) == {}

    def test_that_take_pixels_as_they_are_are_worth_a_word(self, examined):
        given, pixels = model(IMAGES, "y = Conv (x, w)", weights=CONV), np.rint(255 * photographs(24))
        assert not examined(given, pixels)["scale"].doubtful
        assert examined(given, pixels / np.float32(255)) == {}
        pixels[:, -1, -1, -1] = 99.5
        assert examined(given, pixels) == {}


def test_a_mean_of_bytes_is_named_where_pixels_are_scaled_before_it_is_subtracted(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for index, pixels in enumerate(np.rint(255 * photographs(8)).astype(np.uint8)):
        image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / f"{index}.png")
    for mean, std, kinds in (((123.7,), (58.4,), ["range"]), ((0.485,), (0.229,), [])):
        images = ImageConfig(mean=mean, std=std)
        loaded = load(PLAIN, str(tmp_path), samples=8, reading=Reading(images))
        found = examination.examine(PLAIN, loaded.calibration, loaded.test, images=images)
        assert [symptom.kind for symptom in found] == kinds


class TestSoundData:
    @pytest.mark.parametrize("name", ZOO)
    @pytest.mark.parametrize("rows", [4, 24, 100])
    def test_of_the_zoo_has_no_symptom(self, examined, name, rows):
        proto = ZOO[name]()
        given = ir.from_proto(proto)
        for seed in range(4):
            assert examined(given, zoo_data(proto, rows, seed)) == {}
            assert examined(given, zoo_data(proto, rows, seed), zoo_data(proto, 40, seed + 10)) == {}

    @pytest.mark.parametrize("name", VARIANTS)
    def test_of_its_variants_has_no_symptom(self, examined, name):
        proto: onnx.ModelProto = VARIANTS[name]()
        rows = variant_rows(proto, 24)
        assert (
            examined(ir.from_proto(proto), {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}) == {}
        )

    @pytest.mark.parametrize("name", [*ZOO, *(f"variant of {name}" for name in VARIANTS)])
    @pytest.mark.parametrize("distribution", ["normal", "uniform"])
    def test_is_what_inputs_are_that_were_made_up(self, name, distribution):
        given = ir.from_proto(ZOO[name]() if name in ZOO else VARIANTS[name.removeprefix("variant of ")]())
        loaded = load(given, None, samples=16, reading=Reading(distribution=distribution))
        assert examination.examine(given, loaded.calibration, loaded.test) == ()

    @pytest.mark.parametrize(
        "rows",
        [
            pytest.param(lambda: floats(24, 40) < 0.5, id="binary"),
            pytest.param(lambda: floats(24, 40) < 0.05, id="sparse"),
            pytest.param(lambda: floats(24, 40) * (floats(24, 40) < 0.02), id="nearly empty"),
            pytest.param(lambda: RNG.integers(0, 3, (24, 40)), id="small integers"),
            pytest.param(lambda: RNG.standard_cauchy((24, 40)), id="heavy tails"),
            pytest.param(lambda: np.cumsum(RNG.normal(0, 1, (24, 40)), axis=0), id="drifting"),
            pytest.param(lambda: RNG.normal(1e6, 1, (24, 40)), id="far from 0"),
        ],
    )
    def test_has_many_forms(self, examined, rows):
        for _ in range(20):
            assert examined(FEATURES, rows().astype(np.float32)) == {}

    @pytest.mark.parametrize("dtype", ["float16", "uint8", "int16"])
    def test_has_many_types(self, examined, dtype):
        given = model(f"{dtype}[1, 40] x", "y = Cast <to = 1> (x)")
        assert examined(given, (100 * floats(24, 40)).astype(dtype)) == {}

    def test_may_decide_a_shape(self, examined):
        given = model("float[1, 12] a, int64[2] x", "y = Reshape (a, x)")
        assert examined(given, {"a": floats(24, 12), "x": np.repeat([[3, 4]], 24, axis=0)}) == {}
