"""What the charts show is tested exactly, on made-up sweeps; that they can be drawn, in every state of a sweep."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests import made_up_sweeps as made_up
from tests.made_up_sweeps import broken, settings, trial
from workbench.errors import SettingsError, WorkbenchError
from workbench.notebook import charts, figures, formatting, heat, palette, points, still, tables, views

STATES = {"full": made_up.photos_like(), "empty": made_up.empty(), "failed": made_up.all_failed()}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (1243.7, "1,240"),
        (999.7, "1,000"),
        (0.012345, "0.0123"),
        (12.34, "12.3"),
        (123456, "123,000"),
        (-5.0, "-5.00"),
    ],
)
def test_a_number_has_three_figures(value, text):
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0042, "4.20 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (7260, "2 h 1 min"),
        (3e-6, "3.00 µs"),
    ],
)
def test_a_duration_has_its_best_unit(value, text):
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2, "5 s"), (39.1, "40 s"), (55.2, "1 min"), (61, "2 min"), (3600, "1 h"), (3700, "1 h 10 min"), (7190, "2 h")],
)
def test_an_estimated_duration_is_round_and_never_too_short(value, text):
    assert formatting.about(value) == text


def test_a_rate_says_how_sure_it_is_and_leaves_out_what_is_not_known():
    assert formatting.rate(1240, 1203, 1270) == "1,240 samples/s ± 3 %"
    assert formatting.rate(1240, 1239, 1241) == "1,240 samples/s ± 0.1 %"
    assert formatting.rate(113, 0, 262) == "113 samples/s, at most 262"
    assert formatting.rate(1240) == "1,240 samples/s"
    assert formatting.rate(None, 1, 2) == "–"
    assert formatting.half_width(100, 90, 105) == pytest.approx(0.1)


def test_a_settings_has_a_short_name_that_tells_it_apart():
    assert formatting.short_label(settings(0)) == "0w"
    full = settings(4, 2, pin_memory=True, persistent_workers=True, multiprocessing_context="spawn", batch_size=8)
    assert formatting.short_label(full) == "4w p2 pin kept spawn b8"


def test_throughput_has_one_line_a_prefetch_depth_with_the_best_at_each_number_of_workers():
    info = views.throughput_info(made_up.photos_like())
    assert [line.label for line in info.lines] == ["prefetch 2", "prefetch 4"]
    assert [[p.settings for p in line.points] for line in info.lines] == [
        [settings(1, 2), settings(2, 2), settings(4, 2)],
        [settings(1, 4), settings(2, 4), settings(4, 4)],
    ]
    assert info.without_workers.settings == settings(0) == info.current.settings
    assert info.recommended.settings == settings(4, 2)
    assert [p.settings for p in info.others] == [
        settings(2, 2, batch_on_worker=True),
        settings(4, 2, persistent_workers=True),
    ]
    assert [p.status for p in info.unanswered] == ["failed", "over_memory", "timed_out"]
    assert info.summary == (
        "fastest: 1,200 samples/s ± 5 % with 4 workers, prefetch 2 (8 batches in flight); "
        "3 of 12 settings gave no answer"
    )


def test_a_point_carries_the_trials_own_interval():
    results = made_up.photos_like()
    for point, result in zip(points.points(results), results.trials, strict=True):
        assert (point.samples_per_second, point.low, point.high) == (
            result.samples_per_second,
            result.samples_per_second_low,
            result.samples_per_second_high,
        )
        assert results.trials[point.key].settings == point.settings


def test_a_settings_that_gave_wrong_data_is_not_on_a_line_though_it_has_a_rate():
    fast_but_wrong = made_up.run(settings(4, 2), 9999)
    wrong = made_up.TrialResult(
        settings(4, 2),
        (made_up.TrialRun(settings(4, 2), "wrong_data", "lost 3 samples", windows=fast_but_wrong.windows),),
    )
    info = views.throughput_info(made_up.results(trial(settings(2, 2), 100), wrong))
    assert [p.settings for line in info.lines for p in line.points] == [settings(2, 2)]
    assert [p.reason for p in info.unanswered] == ["lost 3 samples"]
    assert (
        views.memory_info(
            made_up.results(
                wrong,
            )
        ).front
        == ()
    )


def test_the_front_is_what_nothing_beats_in_both():
    results = made_up.results(
        trial(settings(0), 100, megabytes=100),
        trial(settings(1, 2), 90, megabytes=150),
        trial(settings(2, 2), 200, megabytes=200),
        trial(settings(2, 4), 200, megabytes=200),
        trial(settings(4, 2), 150, megabytes=300),
        trial(settings(4, 4), 300, megabytes=400),
        broken(settings(8, 2), "over_memory", "900 MB passes 800 MB", megabytes=900),
        broken(settings(8, 4), "failed", "died"),
    )
    info = views.memory_info(results, limit_bytes=800)
    assert [p.settings for p in info.front] == [settings(0), settings(2, 2), settings(4, 4)]
    assert [p.settings for p in info.dominated] == [settings(1, 2), settings(2, 4), settings(4, 2)]
    assert [p.settings for p in info.unanswered] == [settings(8, 2)]
    assert (info.unplaced, info.limit_bytes) == (1, 800)
    assert info.summary == "along the front, 300 MB more memory buys 3.0 times the rate"


def test_of_one_settings_nothing_is_said_to_be_fastest_or_smallest():
    assert views.memory_info(made_up.results(trial(settings(0), 100))).summary == ""
    better = made_up.results(trial(settings(0), 100, megabytes=100), trial(settings(2, 2), 90, megabytes=200))
    assert views.memory_info(better).summary == "0 workers is both fastest and smallest"


def test_the_price_of_speed_is_not_stated_flatly_where_the_intervals_leave_it_open():
    close = made_up.results(trial(settings(0), 100, megabytes=100), trial(settings(2, 2), 103, megabytes=200))
    assert views.memory_info(close).summary.endswith("1.03 times the rate, which their intervals leave open")


def test_the_heat_map_shows_the_best_of_each_pair_and_knows_impossible_pairs():
    info = views.heatmap_info(made_up.photos_like())
    assert info.x_values == (0, 1, 2, 4, 8)
    assert info.y_values == (None, 2, 4)
    rates = [
        [cell and cell.samples_per_second and round(cell.samples_per_second) for cell in row] for row in info.cells
    ]
    assert rates == [[400, None, None, None, None], [None, 380, 800, 1200, None], [None, 384, 820, 1180, None]]
    assert info.cells[1][4].status == "over_memory"
    assert info.impossible == {(1, 0), (2, 0), (0, 1), (0, 2), (0, 3), (0, 4)}
    assert info.summary.startswith("9 of 9 pairs tried")
    _, *others = made_up.photos_like().trials
    skipped = broken(settings(0), "skipped", "not run: the time budget ended before its turn")
    unfinished = dataclasses.replace(made_up.photos_like(), trials=(skipped, *others))
    assert views.heatmap_info(unfinished).summary.startswith("8 of 9 pairs tried")


def test_a_star_in_the_heat_map_stands_beside_the_rate_of_what_is_recommended():
    plain, kept = settings(2, 2), settings(2, 2, persistent_workers=True)
    results = made_up.results(trial(settings(0), 400), trial(plain, 960), trial(kept, 970), current=settings(0))
    info = views.heatmap_info(results)
    assert results.best == plain
    assert [cell.settings for row in info.cells for cell in row if cell] == [settings(0), plain]
    assert info.summary.endswith("each shows its best samples/s, or that of the recommended")


def test_the_heat_map_takes_any_two_knobs_and_refuses_others():
    info = views.heatmap_info(made_up.photos_like(), "batch_on_worker", "multiprocessing_context")
    assert (info.x_values, info.y_values) == ((False, True), (None, "spawn"))
    with pytest.raises(SettingsError, match="'workers' is no knob"):
        views.heatmap_info(made_up.photos_like(), "workers")
    with pytest.raises(SettingsError, match="two different knobs"):
        views.heatmap_info(made_up.photos_like(), "num_workers", "num_workers")


def test_waits_are_summed_up_by_workers_and_tell_kept_workers_from_new_ones():
    info = views.first_batch_info(made_up.photos_like())
    by_label = {series.label: series.waits for series in info.series}
    assert list(by_label) == ["first batch", "epoch edge, new workers", "epoch edge, workers kept"]
    four = by_label["first batch"][-1]
    assert (four.workers, four.median_seconds, four.shortest_seconds, four.longest_seconds, four.settings) == (
        4,
        0.8,
        0.8,
        0.9,
        3,
    )
    assert [(w.workers, w.median_seconds) for w in by_label["epoch edge, workers kept"]] == [(4, 0.02)]


def test_the_range_of_first_batches_is_that_of_the_table_and_not_of_medians():
    assert views.first_batch_info(made_up.photos_like()).summary == "first batch after 100 ms to 900 ms"
    one = made_up.results(trial(settings(2, 2), 100, first=0.25))
    assert views.first_batch_info(one).summary == "first batch after 250 ms"


def test_a_line_breaks_where_settings_were_not_run_and_starts_at_zero_workers_only_beside_them():
    waiting = [broken(settings(count, 4), "skipped", "not run: no time left") for count in (1, 4)]
    rates = {(0, None): 100, (1, 2): 120, (2, 2): 200, (2, 4): 210, (4, 2): 180, (8, 4): 190}
    measured = [trial(settings(*pair), rate) for pair, rate in rates.items()]
    results = made_up.results(*measured, *waiting)
    two, four = views.throughput_info(results).lines

    assert (two.gaps, two.from_zero) == ((), True)  # nobody asked for 8 workers there
    assert (four.gaps, four.from_zero) == ((4,), False)
    figure = figures.throughput_figure(views.throughput_info(results), palette.LIGHT)
    drawn = {trace["name"]: trace for trace in figure["data"]}
    assert [y and round(y) for y in drawn["prefetch 2"]["y"]] == [100, 120, 200, 180]
    assert [y and round(y, -1) for y in drawn["prefetch 4"]["y"]] == [210, None, 190]
    assert drawn["prefetch 4"]["customdata"][1] is None and drawn["prefetch 4"]["x"][1] is None
    lines = re.findall(r'<path d="([^"]+)" fill="none" stroke="[^"]+" stroke-width="2"', still.svg(figure))
    assert [(path.count("M"), path.count("L")) for path in lines[:2]] == [(1, 3), (2, 0)]
    assert not drawn["0 workers"]["showlegend"]
    later = views.throughput_info(made_up.results(trial(settings(2, 2), 100)), earlier=results).earlier
    assert [line.gaps for line in later.lines] == [(), (4,)]


def test_zero_workers_are_named_where_no_line_starts_there():
    results = made_up.results(
        trial(settings(0), 100), trial(settings(4, 4), 200), broken(settings(2, 4), "skipped", "not run: no time left")
    )
    figure = figures.throughput_figure(views.throughput_info(results), palette.LIGHT)
    drawn = {trace["name"]: trace for trace in figure["data"]}
    assert len(drawn["prefetch 4"]["y"]) == 1 and drawn["0 workers"]["showlegend"]
    earlier = figures.throughput_figure(views.throughput_info(results, earlier=results), palette.LIGHT)
    behind = [trace for trace in earlier["data"] if trace["name"] == figures.EARLIER]
    assert [round(y) for trace in behind for y in trace["y"]] == [100, 200]


def test_what_was_not_run_has_one_name_in_every_chart_and_table():
    reason = "not run: the time budget ended before its turn"
    results = made_up.results(trial(settings(0), 100), broken(settings(2, 4), "skipped", reason))
    rail = figures.throughput_figure(views.throughput_info(results), palette.LIGHT)
    cells = heat.heatmap_figure(views.heatmap_info(results), palette.LIGHT)
    texts = (tables.html_table(results), tables.markdown_table(results), str(rail), str(cells), still.svg(rail))

    assert rail["data"][-1]["name"] == "not run" and rail["layout"]["yaxis2"]["ticktext"] == ["not run"]
    assert rail["data"][-1]["marker"]["color"] == palette.LIGHT.muted
    assert [shape["line"]["color"] for shape in cells["layout"]["shapes"]] == [palette.LIGHT.muted]
    for text in texts:
        assert "not run" in text and "skipped" not in text and "no answer" not in text
        assert "not run: not run" not in text and "not run</span> not run" not in text


def test_the_title_of_throughput_speaks_of_the_star_where_another_point_lies_higher():
    results = made_up.photos_like()
    every = views.points(results)
    higher, chosen = every[3], every[8]
    measured = [point for point in every if point.measured]
    told = views._throughput_summary(every, measured, chosen)

    assert higher.samples_per_second > chosen.samples_per_second
    assert told.startswith("recommended: 1,160 samples/s ± 6 % with 4 workers, prefetch 2 (8 batches in flight), pers")
    assert "; highest point: 1,200 samples/s ± 5 %;" in told
    assert views._throughput_summary(every, measured, None).startswith("fastest: 1,200")


def test_waits_of_several_start_methods_are_told_apart():
    results = made_up.results(
        trial(settings(2, 2, multiprocessing_context="fork"), 100, first=0.2),
        trial(settings(2, 2, multiprocessing_context="spawn"), 100, first=3.0),
    )
    labels = [series.label for series in views.first_batch_info(results).series]
    assert labels[:2] == ["first batch, fork", "first batch, spawn"]


def test_hover_text_states_units_interval_and_escapes_the_users_words():
    results = made_up.photos_like()
    lines = points.hover_lines(results.trials[3])
    low, high = results.trials[3].samples_per_second_low, results.trials[3].samples_per_second_high
    assert lines == (
        "<b>4 workers, prefetch 2 (8 batches in flight)</b>",
        f"1,200 samples/s ± 5 % (95 %: {formatting.interval(low, high)})",
        "780 MB peak memory, shared pages once",
        "first batch 800 ms · epoch edge 200 ms",
    )
    failed = "<br>".join(points.hover_lines(results.trials[9]))
    assert "failed: Can&#x27;t pickle &lt;lambda&gt;" in failed and "<lambda>" not in failed


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", charts.VIEWS)
@pytest.mark.parametrize("theme", palette.THEMES)
def test_every_chart_draws_in_every_state_of_a_sweep(state, name, theme):
    figure = getattr(charts, name)(STATES[state], theme=theme)
    assert isinstance(figure, charts.Chart)
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    info = charts.VIEWS[name].info(STATES[state])
    picture = still.svg(charts.VIEWS[name].figure(info, palette.THEMES[theme]), title_id=f"t-{name}")
    root = ElementTree.fromstring(picture)
    assert root.attrib["role"] == "img" and root[0].text
    assert "nan" not in picture.lower()


def test_the_figure_draws_what_the_record_says():
    info = views.throughput_info(made_up.photos_like())
    figure = figures.throughput_figure(info, palette.LIGHT)
    by_name = {trace["name"]: trace for trace in figure["data"]}
    assert set(by_name) == {
        "prefetch 2",
        "prefetch 4",
        "other knobs",
        "0 workers",
        "your settings",
        "recommended",
        "failed",
        "over memory",
        "timed out",
    }
    line = by_name["prefetch 2"]
    shown = [info.without_workers, *info.lines[0].points]
    assert line["y"] == [p.samples_per_second for p in shown]
    assert line["customdata"] == [p.key for p in shown]
    assert line["error_y"]["array"][1:] == [p.high - p.samples_per_second for p in shown[1:]]
    assert by_name["recommended"]["customdata"] == [info.recommended.key]
    on_rail = [trace for trace in figure["data"] if trace.get("yaxis") == "y2"]
    assert [trace["marker"]["symbol"] for trace in on_rail] == ["x", "triangle-up", "hourglass"]
    assert all(trace.get("showlegend", True) for trace in on_rail)
    assert figure["layout"]["yaxis2"]["ticktext"] == ["no answer"]


def test_the_recommended_and_the_users_own_are_recognisable_in_every_chart_wherever_they_lie():
    """Recommended is what needs least among equals in rate, the user's own is anything: neither need be on a front."""
    results = made_up.results(
        trial(settings(0), 400, megabytes=300),
        trial(settings(2, 2), 1000, megabytes=540),
        trial(settings(2, 2, persistent_workers=True), 995, megabytes=560, edge=0.001),
        trial(settings(1, 2, persistent_workers=True), 350, megabytes=450),
        trial(settings(1, 4), 360, megabytes=460),
        current=settings(1, 2, persistent_workers=True),
    )
    beaten = {point.settings for point in views.memory_info(results).dominated}
    assert results.current in beaten
    for best in (settings(2, 2, persistent_workers=True), settings(2, 2)):
        chosen = points.find(points.points(results), best)
        mine = points.find(points.points(results), results.current)
        for name in ("throughput", "memory", "first_batch"):
            view = charts.VIEWS[name]
            info = dataclasses.replace(view.info(results), recommended=chosen)
            drawn = {trace["name"]: trace for trace in view.figure(info, palette.LIGHT)["data"]}
            assert drawn["recommended"]["customdata"] == [chosen.key]
            assert drawn["your settings"]["customdata"] == [mine.key]
            assert drawn["recommended"]["marker"]["symbol"] == "star" and "star" not in palette.MARKERS
            assert drawn["your settings"]["marker"]["symbol"] == "square-open"
            for loose in ("beaten", "other knobs"):
                assert not {chosen.key, mine.key} & set(drawn.get(loose, {"customdata": []})["customdata"])


def test_the_heat_map_has_the_same_signs_in_its_cells_and_says_what_they_mean():
    results = made_up.photos_like()
    info = views.heatmap_info(results)
    assert (info.recommended, info.current) == ((1, 3), (0, 0))
    figure = heat.heatmap_figure(info, palette.LIGHT)
    words = {(note["y"], note["x"]): note["text"] for note in figure["layout"]["annotations"]}
    assert words[1, 3] == "★ 1,200" and words[0, 0] == "□ 400" and words[1, 2] == "800"
    assert "★ recommended, □ your settings" in re.sub(r"<br>|\xa0", " ", figure["layout"]["title"]["text"])
    none = heat.heatmap_figure(views.heatmap_info(made_up.all_failed()), palette.LIGHT)
    assert "★" not in str(none)


def test_lines_differ_in_colour_marker_and_dash_beyond_the_palette():
    looks = {(palette.colour(i), palette.marker(i), palette.dash(i)) for i in range(12)}
    assert len(looks) == 12
    assert len({palette.marker(i) for i in range(6)}) == len({palette.dash(i) for i in range(6)}) == 6


def test_what_is_being_measured_is_marked():
    running = points.Running(settings(2, 2), 512.0)
    figure = figures.throughput_figure(views.throughput_info(made_up.empty(), running), palette.LIGHT)
    (trace,) = figure["data"]
    assert (trace["name"], trace["x"], trace["y"]) == ("measuring now", [2], [512.0])


def test_a_chart_that_is_shown_offers_no_upload(monkeypatch):
    shown = []
    monkeypatch.setattr("plotly.io.show", lambda figure, *args, **kwargs: shown.append(kwargs["config"]))
    chart = charts.throughput(made_up.photos_like())
    chart.show()
    for config in (*shown, chart.bundle()[charts.PLOTLY_MIME]["config"]):
        assert config["plotlyServerURL"] == "" and "sendChartToCloud" in config["modeBarButtonsToRemove"]


@pytest.mark.parametrize("view", charts.VIEWS)
@pytest.mark.parametrize("sweep", [made_up.photos_like, made_up.all_failed, made_up.empty])
def test_a_chart_in_a_notebook_leaves_a_picture_for_pages_without_scripts(view, sweep):
    bundle = getattr(charts, view)(sweep()).bundle()
    assert bundle["image/svg+xml"].startswith("<svg ") and ElementTree.fromstring(bundle["image/svg+xml"]) is not None
    assert bundle["text/plain"] and "<" not in bundle["text/plain"]


def test_an_unknown_theme_is_refused():
    with pytest.raises(WorkbenchError, match="theme='sepia' is not known; choose from light, dark, auto"):
        charts.throughput(made_up.empty(), theme="sepia")


def test_the_table_has_a_caption_scopes_badges_and_reasons_and_escapes_everything():
    table = tables.html_table(made_up.photos_like(), caption="12 <settings>", selected=3)
    root = ElementTree.fromstring(table.replace("&nbsp;", " "))
    assert root.find("caption").text == "12 <settings>"
    rows = root.findall("tbody/tr")
    assert len(rows) == 12
    assert "".join(rows[0].find("th").itertext()) == "4 workers, prefetch 2 (8 batches in flight) recommended"
    assert rows[0].attrib["aria-current"] == "true"
    assert all(row.find("th").attrib["scope"] == "row" for row in rows)
    told = ["".join(row.find("td").itertext()) for row in rows[-3:]]
    assert told[0].startswith("failed Can't pickle <lambda>")
    assert told[1] == "over the memory limit 1.6 GB at 3 s passes the limit of 1.5 GB; allow more"
    assert re.search(r"your settings</span></th><td>400 ± 5 %</td>", table)


def test_a_pair_of_numbers_may_be_broken_between_them_only():
    table = tables.html_table(made_up.photos_like())
    assert '<td class="wb-pair">60.0&nbsp;ms&nbsp;/ 80.0&nbsp;ms</td>' in table


def test_a_long_table_says_what_it_leaves_out():
    table = tables.html_table(made_up.photos_like(), limit=5)
    assert table.count("<tr") == 1 + 5 + 1 and "and 7 more" in table
    assert "\nand 7 more\n* recommended; " in tables.text_table(made_up.photos_like(), limit=5)
    assert "Nothing measured yet" in tables.html_table(made_up.empty())
