"""Objectives of terms: `--terms` among the settings of a method, and which weights an objective reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError
from slimformer.objectives import format_terms, parse_terms

if TYPE_CHECKING:
    from slimformer.config import Config
    from slimformer.objectives import RecordedStudent, TermObjective


def read_terms(value: Any) -> str | None:
    """Accept an objective as text, list or mapping, and return it as text."""
    if value is None:
        return None
    try:
        terms = parse_terms(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not any(term.weight for term in terms):
        raise ValueError("the weights of all terms are 0, so nothing would be learned; give one of them more")
    return format_terms(terms)


def refuse_both(config: Config, *names: str) -> None:
    """Refuse `terms` beside settings that say the same in other words."""
    for name in names:
        if name in config.model_fields_set:
            raise ValueError(f"`terms` and `{name}` both say what is learned; keep one of them")


def freeze_unused(student: RecordedStudent, objective: TermObjective, inputs: dict[str, Any]) -> list[str]:
    """Let only those weights be trained that the objective reaches; return the names of the others.

    One backward pass on a small batch tells. Nothing is trained yet.
    """
    objective(student, inputs).total.backward()
    idle = [name for name, parameter in student.named_parameters() if parameter.grad is None]
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name not in idle)
        parameter.grad = None
    return idle
