"""Revisions of what is rendered for a variant.

An operator upgrade must roll no engine. A variant is rendered by the revision it was made with, for as long as that one is kept
in `variant.RENDERERS`; it moves to the newest when it rolls for another reason, or by the policy's annotation
`inference-fleet.dev/upgrade: now`. Any change of what a revision renders needs a new one: golden files hold each revision still.
"""

from __future__ import annotations

NEWEST = 1
"""The revision that new variants are made with."""
