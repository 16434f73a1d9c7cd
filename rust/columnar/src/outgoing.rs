//! Messages that are to be sent, out of a record batch.

use arrow_array::RecordBatch;
use ssbroker_core::message::Outgoing;

use crate::read::Source;
use crate::schema::{fragments, wire};

/// The messages of a batch, where each row is one as it should be.
///
/// # Returns
/// The messages; `None` where a column or a row is not what was expected, or merely unusual, whatever it is.
#[must_use]
pub fn outgoing<'a>(batch: &'a RecordBatch, message_type_name: &'a str) -> Option<Vec<Outgoing<'a>>> {
    let source = Source { batch, table: "", first_row: 0 };
    source.each_once(&[fragments::CONVERSATION_HANDLE, fragments::MESSAGE_BODY, wire::MESSAGE_TYPE_NAME]).ok()?;
    let handles = source.guids(fragments::CONVERSATION_HANDLE).ok()??;
    let bodies = source.bytes(fragments::MESSAGE_BODY).ok()?;
    let kinds = source.optional_text(wire::MESSAGE_TYPE_NAME).ok()?;
    if bodies.is_text
        || bodies.first_null().is_some()
        || kinds.as_ref().is_some_and(|kinds| kinds.first_null().is_some())
    {
        return None;
    }
    let message = |row| {
        let kind =
            kinds.as_ref().map_or(Some(message_type_name), |kinds| std::str::from_utf8(kinds.get(row).ok()?).ok());
        Some(Outgoing {
            conversation_handle: handles.optional(row).ok()??,
            message_type_name: kind?,
            message_body: bodies.get(row).ok()?,
        })
    };
    (0..batch.num_rows()).map(message).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, StringArray};

    use super::*;

    fn handles(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    const GUID: &str = "00000000-0000-0000-0000-000000000007";

    #[test]
    fn rows_are_messages() {
        let kinds: ArrayRef = Arc::new(StringArray::from(vec!["order", "return"]));
        let bodies: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..], b""]));
        let named =
            [("conversation_handle", handles(&[GUID, GUID])), ("message_body", bodies), ("message_type_name", kinds)];
        let batch = RecordBatch::try_from_iter(named).unwrap();
        let found = outgoing(&batch, "DEFAULT").unwrap();
        let of = |message: &Outgoing<'_>| {
            (message.conversation_handle.0[15], message.message_type_name.to_owned(), message.message_body.to_vec())
        };
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [(7, "order".into(), b"a".to_vec()), (7, "return".into(), vec![])]
        );
    }

    #[test]
    fn what_is_anything_else_is_left_to_others() {
        let bodies: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..]]));
        let none: ArrayRef = Arc::new(BinaryArray::from(vec![None::<&[u8]>]));
        let short: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[1u8; 8]].iter()).unwrap());
        for (handle, body) in [
            (handles(&["7"]), &bodies),
            (short, &bodies),
            (handles(&[GUID]), &none),
            (handles(&[GUID]), &handles(&["a"])),
        ] {
            let batch =
                RecordBatch::try_from_iter([("conversation_handle", handle), ("message_body", body.clone())]).unwrap();
            assert!(outgoing(&batch, "DEFAULT").is_none(), "{batch:?}");
        }
        let nameless = RecordBatch::try_from_iter([("handle", handles(&[GUID])), ("message_body", bodies)]).unwrap();
        assert!(outgoing(&nameless, "DEFAULT").is_none());
    }
}
