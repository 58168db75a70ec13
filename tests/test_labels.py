"""Names of points stand where they print over nothing that matters, or not at all."""

from __future__ import annotations

from workbench.notebook.labels import PAD, Spot, placed


def test_points_are_named_beside_the_stairs_between_them():
    assert placed([Spot(1.0, 1.0, name="0w"), Spot(2.0, 2.0, name="2w p2")]) == [
        ("0w", "top left"),
        ("2w p2", "top left"),
    ]
    axis_is_left = [Spot(1.0, 1.0, name="0w wait"), Spot(2.0, 2.0)]
    assert placed(axis_is_left)[0] == ("0w wait", "bottom right")
    assert placed([]) == []


def test_a_name_keeps_away_from_other_marks_bars_and_names():
    first, last = Spot(330.0, 119.0, 90.0, 149.0, "0w wait", 10.0), Spot(1100.0, 199.0, 182.0, 217.0, "2w p2 kept", 7.5)
    alone = placed([first, last])
    crowded = placed([first, last], [Spot(376.0, 107.0)])  # right below it

    assert alone[0] == (f"{PAD}0w wait", "bottom right")
    assert crowded[0] == (f"{PAD}0w wait", "top right")
    near = placed([Spot(416.0, 692.0, 575.0, 810.0, "2w p2 kept"), Spot(430.0, 710.0, 590.0, 830.0, "4w p2"), last])
    assert near[1] == ("4w p2", "bottom right")


def test_where_there_is_no_room_there_is_no_name():
    stairs = [Spot(float(n), 100 + n / 10, name=f"{n}w p2 kept") for n in range(60)]
    shown = [name for name, _ in placed(stairs)]

    assert 1 <= sum(map(bool, shown)) < 20
    assert placed([Spot(1.0, 1.0, name=""), Spot(2.0, 2.0, name="x")])[0][0] == ""
