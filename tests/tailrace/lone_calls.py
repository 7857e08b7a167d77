"""What calls by the short way have begun, for the tests of the shells."""

from tailrace.requests.lone_calls import LoneLookUps, LoneWrites


def noted(monkeypatch):
    """For each look-up that has begun by the short way: whether that has had its answer."""
    found, begin, end = [], LoneLookUps.begin, LoneLookUps.end

    def noted_begin(self, *asked):
        frame = begin(self, *asked)
        if frame is not None:
            found.append(False)
        return frame

    def noted_end(self, *heard):
        items = end(self, *heard)
        found[-1] = items is not None
        return items

    monkeypatch.setattr(LoneLookUps, "begin", noted_begin)
    monkeypatch.setattr(LoneLookUps, "end", noted_end)
    return found


def noted_writes(monkeypatch):
    """For each put or deletion that has begun by the short way: whether that has had its answer."""
    found, begin, end = [], LoneWrites.begin, LoneWrites.end

    def noted_begin(self, *asked):
        row = begin(self, *asked)
        if row is not None:
            found.append(False)
        return row

    def noted_end(self, *heard):
        found[-1] = end(self, *heard)
        return found[-1]

    monkeypatch.setattr(LoneWrites, "begin", noted_begin)
    monkeypatch.setattr(LoneWrites, "end", noted_end)
    return found
