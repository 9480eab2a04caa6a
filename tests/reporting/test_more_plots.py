"""Bands and maps: the right numbers at the right place, on common scales."""

import numpy as np
import pytest

from cavity.errors import CavityError
from cavity.reporting import plots

pytest.importorskip("matplotlib")

X = np.linspace(0.0, 4.0, 5)
ROWS = {"leeds": (np.array([0.5, 1.0]), np.array([2.0, 3.0])), "york": (np.array([[3.0]]), np.array([4.0]))}
OFFSETS = np.array([-2.0, -1.0, 1.0, 2.0])[:, None]
PLACES = np.array([[-100.0, 30.0], [-90.0, 40.0], [-80.0, 50.0]])


def prediction(height):
    mean = np.full(5, height)
    return mean, mean + OFFSETS


def labelled(axes):
    return {line.get_label(): line for line in axes.lines}


def extent(band):
    heights = band.get_paths()[0].vertices[:, 1]
    return heights.min(), heights.max()


def test_bands_show_mean_bands_and_rows_of_each_method():
    figure = plots.bands(X, {"PVI": prediction(0.0), "FedAvg": prediction(5.0)}, ROWS, truth=X)
    assert [axes.get_title() for axes in figure.axes] == ["PVI", "FedAvg"]
    for axes, height in zip(figure.axes, (0.0, 5.0), strict=True):
        wide, narrow = axes.collections
        assert (wide.get_label(), narrow.get_label()) == ("95 %", "50 %")
        assert extent(wide) == (height - 2, height + 2)
        assert extent(narrow) == (height - 1, height + 1)
        lines = labelled(axes)
        np.testing.assert_array_equal(lines["mean"].get_xydata(), np.stack([X, np.full(5, height)], 1))
        np.testing.assert_array_equal(lines["true function"].get_ydata(), X)
        np.testing.assert_array_equal(lines["leeds"].get_xydata(), [[0.5, 2], [1, 3]])
        np.testing.assert_array_equal(lines["york"].get_xydata(), [[3, 4]])
        assert lines["leeds"].get_color() != lines["york"].get_color()
        assert lines["leeds"].get_marker() != lines["york"].get_marker()
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "95 %",
        "50 %",
        "true function",
        "mean",
        "leeds",
        "york",
    ]


def test_no_method_cuts_off_the_inducing_inputs_of_another():
    many, few = (np.full(9, 2.0), np.full(9, 0.5)), (np.array([2.0]), np.array([0.5]))
    figure = plots.bands(X, {"PVI": prediction(0.0), "few": prediction(5.0)}, ROWS, inducing={"PVI": many, "few": few})
    strip = figure.axes[2]
    bottom, top = strip.get_ylim()
    lanes = strip.lines[0].get_ydata()
    assert len(np.unique(lanes)) == 9
    assert ((lanes > top) & (lanes < bottom)).all()


def test_inducing_inputs_stand_below_with_a_deviation_to_either_side_and_never_overlap():
    means, deviations = np.array([2.0, 1.0, 2.1, 9.0]), np.array([0.5, 0.1, 0.3, 0.1])
    figure = plots.bands(X, {"PVI": prediction(0.0)}, ROWS, inducing={"PVI": (means, deviations)})
    panel, strip = figure.axes
    (dots,) = strip.lines
    np.testing.assert_array_equal(dots.get_xdata(), means)
    (lines,) = strip.collections
    ends = np.array([segment[:, 0] for segment in lines.get_segments()])
    np.testing.assert_allclose(ends, np.stack([means - deviations, means + deviations], 1))
    lanes = dots.get_ydata()
    assert lanes[0] == lanes[1] != lanes[2]
    # the input at 9 does not stretch the axis, and is told
    assert strip.get_xlim() == panel.get_xlim()
    assert panel.get_xlim()[1] < 5
    assert [text.get_text() for text in strip.texts] == ["1 off the axis"]


def test_many_clients_are_not_named():
    clients = {f"client-{i:02d}": (X, X) for i in range(20)}
    figure = plots.bands(X, {"PVI": prediction(0.0)}, clients)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["95 %", "50 %", "mean"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"predictions": {}}, "no method has a prediction"),
        ({"predictions": {"PVI": (X, np.zeros((5, 4)))}}, r"'PVI': .*\(4, 5\).* and \(5, 4\)"),
        ({"probabilities": (0.1, 0.5, 0.8, 0.9)}, "pairs around one half"),
        ({"probabilities": (0.9, 0.1)}, "pairs around one half"),
        ({"probabilities": (0.1, 0.5, 0.9)}, "pairs around one half"),
        ({"probabilities": tuple(np.arange(1, 9) / 9)}, "at most 3 bands can be drawn; the probabilities give 4"),
        ({"inducing": {"CPO": (X, X)}}, "'PVI' has no inducing inputs; there are inducing inputs of: CPO"),
        ({"inducing": {}}, "'PVI' has no inducing inputs"),
    ],
)
def test_bands_refuse(changed, message):
    arguments = {"predictions": {"PVI": prediction(0.0)}, "clients": ROWS} | changed
    with pytest.raises(CavityError, match=message):
        plots.bands(X, **arguments)


def test_maps_share_one_scale_of_colours():
    figure = plots.maps({"truth": (PLACES, np.array([1.0, 2, 3])), "mean": (PLACES[:2], np.array([0.0, 9]))}, label="F")
    left, right, bar = figure.axes
    assert bar.get_ylabel() == "F"
    for axes, places, values in ((left, PLACES, [1, 2, 3]), (right, PLACES[:2], [0, 9])):
        (points,) = axes.collections
        np.testing.assert_array_equal(points.get_offsets(), places)
        np.testing.assert_array_equal(points.get_array(), values)
        assert points.get_clim() == (0, 9) == bar.get_ylim()
    assert left.get_xlim() == right.get_xlim()
    # at 40 degrees north, a degree of latitude is 1 / cos(40) = 1.305 degrees of longitude
    assert left.get_aspect() == pytest.approx(1.305, abs=1e-3)
    assert not figure.legends


def test_errors_have_their_centre_in_the_middle_of_the_scale():
    panels = {"error": (PLACES, np.array([-1.0, 0.0, 4.0]))}
    figure = plots.maps(panels, label="F", centre=0.0)
    assert figure.axes[0].collections[0].get_clim() == (-4, 4)
    narrow = plots.maps(panels, label="F", centre=1.0, limits=(0.0, 3.0))
    assert narrow.axes[0].collections[0].get_clim() == (-1, 3)
    assert narrow.axes[1].get_ylim() == (-1, 3)


def test_maps_show_inducing_inputs_and_clients():
    means, deviations = PLACES[:2] + 1, np.array([[2.0, 1.0], [0.5, 3.0]])
    panels = {name: (PLACES, np.arange(3.0)) for name in ("PVI", "fixed", "truth")}
    inducing = {"PVI": (means, deviations), "fixed": PLACES}
    figure = plots.maps(
        panels, label="F", inducing=inducing, clients={"west": PLACES[:2], "east": PLACES[2:]}, columns=2
    )
    pvi, fixed, truth = figure.axes[:3]
    np.testing.assert_array_equal(pvi.collections[1].get_offsets(), means)
    for line, mean, deviation in zip(pvi.lines, means, deviations, strict=True):
        ends = np.array([line.get_xydata().min(axis=0), line.get_xydata().max(axis=0)])
        np.testing.assert_allclose(ends, [mean - deviation, mean + deviation])
    np.testing.assert_array_equal(fixed.collections[1].get_offsets(), PLACES)
    assert not fixed.lines
    assert not fixed.texts
    assert len(truth.collections) == 1
    assert not figure.axes[3].get_visible()
    for axes in (pvi, fixed, truth):
        west, _ = axes.patches
        assert west.get_bbox().extents.tolist() == [-100, 30, -90, 40]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["client", "one standard deviation", "inducing input"]


def test_inducing_inputs_beyond_the_map_are_counted_and_do_not_stretch_it():
    inputs = np.array([[-90.0, 40.0], [0.0, 40.0], [-90.0, 80.0]])
    axes = plots.maps({"PVI": (PLACES, np.zeros(3))}, label="F", inducing={"PVI": inputs}).axes[0]
    assert axes.get_xlim()[1] < -79
    assert [text.get_text() for text in axes.texts] == ["2 inducing inputs beyond the map"]


def test_a_map_has_room_for_its_clients():
    clients = {"north": np.array([[-95.0, 55.0], [-90.0, 60.0]])}
    axes = plots.maps({"PVI": (PLACES, np.zeros(3))}, label="F", clients=clients).axes[0]
    assert axes.get_ylim()[1] > 60


def test_territories_give_neighbours_other_colours():
    rng = np.random.default_rng(0)
    corners = [(i, j) for i in range(5) for j in range(4)]
    clients = {f"{i}-{j}": np.array([i, j]) + rng.uniform(0, 1, size=(9, 2)) for i, j in corners}
    (axes,) = plots.territories(clients, title="20 clients").axes
    assert [text.get_text() for text in axes.texts] == [str(i) for i in range(20)]
    assert len(axes.patches) == 20
    colours = [tuple(points.get_facecolor()[0]) for points in axes.collections]
    beside = [(a, b) for a in range(20) for b in range(a) if np.abs(np.subtract(corners[a], corners[b])).sum() == 1]
    assert len(beside) == 31
    assert all(colours[a] != colours[b] for a, b in beside)


def test_maps_refuse():
    with pytest.raises(CavityError, match="no panel"):
        plots.maps({}, label="F")
    with pytest.raises(CavityError, match=r"'truth': .* \(3, 2\) and \(2,\)"):
        plots.maps({"truth": (PLACES, np.zeros(2))}, label="F")
    with pytest.raises(CavityError, match="inducing inputs of CPO: no such panel; choose from: truth"):
        plots.maps({"truth": (PLACES, np.zeros(3))}, label="F", inducing={"CPO": PLACES})
    with pytest.raises(CavityError, match="no client"):
        plots.territories({})


def test_they_can_be_saved(tmp_path):
    page = tmp_path / "page.png"
    for figure in (
        plots.bands(X, {"PVI": prediction(0.0)}, ROWS, inducing={"PVI": (X, X / 10)}),
        plots.maps({"truth": (PLACES, np.zeros(3))}, label="F", inducing={"truth": PLACES}),
        plots.territories({"west": PLACES[:2], "east": PLACES[2:]}),
    ):
        figure.savefig(page)
        assert page.stat().st_size > 5_000
