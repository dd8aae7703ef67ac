"""Watch a function or method at work without changing it."""


def spy(monkeypatch, owner, name, keep):
    """Replace `owner.name` by itself, and gather `keep(positional arguments, result)` of every call."""
    original, seen = getattr(owner, name), []

    def call(*arguments, **options):
        result = original(*arguments, **options)
        seen.append(keep(arguments, result))
        return result

    monkeypatch.setattr(owner, name, call)
    return seen
