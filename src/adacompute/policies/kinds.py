"""Kinds: the two kinds of policies, by what they see.

Most policies see the text of a question and its votes, and decide in blocks. Evidence policies also
see which arm each sample is from and how confident it is, and decide by looking up a plan.
"""

from __future__ import annotations

from typing import TypeAlias

from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.coloured import ColouredPolicy

EVIDENCE_POLICIES = (ColouredPolicy, ArmMixture)
"""Policies that see arms and the confidence of samples."""

EvidencePolicy: TypeAlias = ColouredPolicy | ArmMixture
