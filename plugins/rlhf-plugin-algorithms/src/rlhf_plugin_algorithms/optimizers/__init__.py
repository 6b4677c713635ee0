"""Optimizers: parameter groups, and torch optimizers of them. One file each."""

from .adam import AdamConfig
from .adam8bit import Adam8bitConfig
from .muon import MuonConfig
from .sgd import SgdConfig

__all__ = ["Adam8bitConfig", "AdamConfig", "MuonConfig", "SgdConfig"]
