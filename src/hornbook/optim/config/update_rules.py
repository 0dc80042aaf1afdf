"""Update rules by their `kind`: what `optim.groups` may give a group of parameters."""

from typing import Annotated

from pydantic import Field

from hornbook.optim.config.adamw_config import AdamW8bitRule, AdamWRule
from hornbook.optim.config.classic_rules import (
    AdafactorRule,
    AdagradRule,
    AdamRule,
    LAMBRule,
    LionRule,
    RMSPropRule,
    SGDRule,
)
from hornbook.optim.config.matrix_rules import MuonRule, SoapRule
from hornbook.optim.config.rule import UpdateRule
from hornbook.settings.fields import open_to

AnyRule = Annotated[
    AdamWRule
    | AdamW8bitRule
    | SGDRule
    | AdagradRule
    | RMSPropRule
    | AdamRule
    | AdafactorRule
    | LionRule
    | LAMBRule
    | MuonRule
    | SoapRule,
    Field(discriminator="kind"),
    *open_to("update rule", UpdateRule),
]
