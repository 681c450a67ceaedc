"""The parameters of a call of `write_records`. No torch here."""

from __future__ import annotations

from harness.core.call_words import ROW_VALUES, Padded, RowValues, SlotOrder
from harness.core.params import Length, Tokens
from harness.ops.parts.record_params import RecordParams


class WriteRecordsParams(RecordParams):
    """One call of `write_records` for `num_tokens` tokens, and then `num_padded` tokens with slot
    -1.
    """

    num_tokens: Tokens = 9
    num_padded: Length = 3
    slot_order: SlotOrder = "random"
    padded_at: Padded = "end"
    values: tuple[RowValues, ...] = ROW_VALUES


PARAMS = WriteRecordsParams
