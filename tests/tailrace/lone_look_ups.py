"""What look-ups by the short way have begun, for the tests of the shells."""

from tailrace.requests.lone_calls import LoneLookUps


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
