//! Rows of the envelope: header signatures, senders, and the fields of the first hop.
//!
//! The header of an unencrypted fragment is signed with the MD5 of all fields of its row except the body (P21).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Int8Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow_schema::Schema;
use ssbroker_md5::digest_many;

use crate::arrays::binary_16;
use crate::error::{Error, Result, internal, type_name};
use crate::schema::{fragments, wire, wire_schema};
use crate::wire::HOPS;

/// The value of `security` for fragments that only have digests.
pub(crate) const UNENCRYPTED: i8 = 0;
const ABSENT: [u8; 16] = [0; 16];
/// The length of a missing name.
const NO_NAME: u32 = u32::MAX;
const HAS_TO_BROKER: u16 = 1 << 4;
const HAS_MESSAGE_ID: u16 = 1 << 5;
const HAS_LIFETIME: u16 = 1 << 6;

/// Returns the header digest of each row of all batches. For a broker error, which has no sequence number, it
/// includes the body.
///
/// # Errors
/// A column is missing or has the wrong type.
pub fn header_digests(batches: &[RecordBatch]) -> Result<ArrayRef> {
    let mut digests = Vec::new();
    for batch in batches {
        digests.extend(digests_of(&EnvelopeColumns::new(batch)?, 0..batch.num_rows()));
    }
    binary_16(digests, None)
}

/// Returns the header digests of rows.
pub(crate) fn digests_of(columns: &EnvelopeColumns<'_>, rows: impl Iterator<Item = usize>) -> Vec<[u8; 16]> {
    let mut signed = Vec::new();
    let mut ends = Vec::with_capacity(rows.size_hint().0);
    for row in rows {
        columns.write_header(row, &mut signed);
        ends.push(signed.len());
    }
    let mut start = 0;
    let headers: Vec<&[u8]> = ends.iter().map(|&end| &signed[std::mem::replace(&mut start, end)..end]).collect();
    let mut digests = vec![ABSENT; headers.len()];
    digest_many(&headers, &mut digests);
    digests
}

/// The columns of the envelope without the header signature.
pub(crate) struct EnvelopeColumns<'a> {
    pub(crate) conversation: &'a FixedSizeBinaryArray,
    pub(crate) from_broker: &'a FixedSizeBinaryArray,
    pub(crate) to_broker: &'a FixedSizeBinaryArray,
    pub(crate) message_id: &'a FixedSizeBinaryArray,
    pub(crate) sequence: &'a Int64Array,
    pub(crate) fragment: &'a Int32Array,
    pub(crate) count: &'a Int32Array,
    pub(crate) lifetime: &'a TimestampMicrosecondArray,
    /// In the order of their bits.
    pub(crate) flags: [&'a BooleanArray; 4],
    pub(crate) priority: &'a Int8Array,
    pub(crate) security: &'a Int8Array,
    pub(crate) names: [&'a StringArray; 4],
    pub(crate) signatures: [&'a FixedSizeBinaryArray; 2],
    pub(crate) acked: &'a Int64Array,
    pub(crate) acked_ahead: &'a BinaryArray,
    pub(crate) body: &'a BinaryArray,
}

impl<'a> EnvelopeColumns<'a> {
    pub(crate) fn new(batch: &'a RecordBatch) -> Result<Self> {
        let fixed = |name| fixed_16(batch, name);
        let small = |name| column(batch, name, "int8", |array| array.as_primitive_opt::<Int8Type>());
        let number = |name| column(batch, name, "int32", |array| array.as_primitive_opt::<Int32Type>());
        let large = |name| column(batch, name, "int64", |array| array.as_primitive_opt::<Int64Type>());
        let flag = |name| column(batch, name, "bool", |array| array.as_boolean_opt());
        let name = |name| column(batch, name, "string", |array| array.as_string_opt::<i32>());
        let bytes = |name| column(batch, name, "binary", |array| array.as_binary_opt::<i32>());
        Ok(Self {
            conversation: fixed(fragments::CONVERSATION_ID)?,
            from_broker: fixed(wire::FROM_BROKER_INSTANCE)?,
            to_broker: fixed(wire::TO_BROKER_INSTANCE)?,
            message_id: fixed(wire::MESSAGE_ID)?,
            sequence: large(fragments::MESSAGE_SEQUENCE_NUMBER)?,
            fragment: number(fragments::FRAGMENT_NUMBER)?,
            count: number(fragments::FRAGMENT_COUNT)?,
            lifetime: column(batch, wire::LIFETIME, "timestamp[us]", |array| {
                array.as_primitive_opt::<TimestampMicrosecondType>()
            })?,
            flags: [
                flag(fragments::IS_INITIATOR)?,
                flag(wire::IS_SEQUENCED)?,
                flag(wire::IS_END_OF_DIALOG)?,
                flag(wire::IS_CONVERSATION_ERROR)?,
            ],
            priority: small(wire::PRIORITY)?,
            security: small(wire::SECURITY)?,
            names: [
                name(wire::FROM_SERVICE_NAME)?,
                name(wire::TO_SERVICE_NAME)?,
                name(wire::SERVICE_CONTRACT_NAME)?,
                name(wire::MESSAGE_TYPE_NAME)?,
            ],
            signatures: [fixed(fragments::MESSAGE_SIGNATURE)?, fixed(fragments::FRAGMENT_SIGNATURE)?],
            acked: large(wire::ACKED_SEQUENCE_NUMBER)?,
            acked_ahead: bytes(wire::ACKED_AHEAD)?,
            body: bytes(fragments::MESSAGE_BODY)?,
        })
    }

    /// Returns the header signatures.
    pub(crate) fn signature(batch: &'a RecordBatch) -> Result<&'a FixedSizeBinaryArray> {
        fixed_16(batch, wire::HEADER_SIGNATURE)
    }

    /// Appends the bytes of a row's header that are signed.
    fn write_header(&self, row: usize, into: &mut Vec<u8>) {
        let [_, is_sequenced, ..] = self.flags;
        let mut flags: u16 = (0..).zip(self.flags).map(|(bit, flag)| u16::from(flag.value(row)) << bit).sum();
        for (column, bit) in [
            (self.to_broker as &dyn Array, HAS_TO_BROKER),
            (self.message_id, HAS_MESSAGE_ID),
            (self.lifetime, HAS_LIFETIME),
        ] {
            flags |= if column.is_valid(row) { bit } else { 0 };
        }
        for guid in [self.conversation, self.from_broker, self.to_broker, self.message_id] {
            into.extend_from_slice(value(guid, row).unwrap_or(&ABSENT));
        }
        into.extend_from_slice(&self.sequence.value(row).to_be_bytes());
        into.extend_from_slice(&self.fragment.value(row).to_be_bytes());
        into.extend_from_slice(&self.count.value(row).to_be_bytes());
        into.extend_from_slice(&value_or_zero(self.lifetime.is_valid(row), self.lifetime.value(row)).to_be_bytes());
        into.extend_from_slice(&flags.to_be_bytes());
        into.extend_from_slice(&self.priority.value(row).to_be_bytes());
        into.extend_from_slice(&self.security.value(row).to_be_bytes());
        for name in self.names {
            let name = name.is_valid(row).then(|| name.value(row));
            let length = name.map_or(NO_NAME, |name| length(name.as_bytes()));
            into.extend_from_slice(&length.to_be_bytes());
            into.extend_from_slice(name.unwrap_or_default().as_bytes());
        }
        let [message, fragment] = self.signatures.map(|signature| value(signature, row));
        let acked_ahead = self.acked_ahead.is_valid(row).then(|| self.acked_ahead.value(row));
        let acked = self.acked.is_valid(row);
        let present = [message.is_some(), fragment.is_some(), acked, acked_ahead.is_some()];
        into.push((0..).zip(present).map(|(bit, is)| u8::from(is) << bit).sum());
        into.extend_from_slice(&value_or_zero(acked, self.acked.value(row)).to_be_bytes());
        into.extend_from_slice(&length(acked_ahead.unwrap_or_default()).to_be_bytes());
        for part in [message, fragment, acked_ahead].into_iter().flatten() {
            into.extend_from_slice(part);
        }
        if !is_sequenced.value(row) {
            into.extend_from_slice(self.body.value(row));
        }
    }
}

/// Returns a column downcast to its array type.
pub(crate) fn column<'a, T>(
    batch: &'a RecordBatch,
    name: &str,
    expected: &str,
    read: fn(&'a dyn Array) -> Option<&'a T>,
) -> Result<&'a T> {
    let found = batch.column_by_name(name);
    found.and_then(|array| read(array.as_ref())).ok_or_else(|| Error::Schema {
        column: name.to_owned(),
        expected: expected.to_owned(),
        actual: found.map(|array| type_name(array.data_type())),
    })
}

/// Returns a column of GUIDs or digests.
pub(crate) fn fixed_16<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a FixedSizeBinaryArray> {
    column(batch, name, "binary(16)", |array| {
        array.as_fixed_size_binary_opt().filter(|array| array.value_length() == 16)
    })
}

/// Returns a GUID or digest; `None` for null.
pub(crate) fn optional_16(column: &FixedSizeBinaryArray, row: usize) -> Option<[u8; 16]> {
    if column.is_null(row) { None } else { column.value(row).try_into().ok() }
}

fn value(column: &FixedSizeBinaryArray, row: usize) -> Option<&[u8]> {
    column.is_valid(row).then(|| column.value(row))
}

/// Null counts as zero, whatever the value buffer contains.
fn value_or_zero(is_valid: bool, value: i64) -> i64 {
    if is_valid { value } else { 0 }
}

/// Returns a length as four bytes; no value is longer.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(NO_NAME)
}

const SECOND: i64 = 1_000_000;

/// Consecutive rows of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderRun {
    /// The conversation id.
    pub conversation_id: [u8; 16],
    /// Whether the initiator sends the rows.
    pub is_initiator: bool,
    /// The broker id of the receiver, if known.
    pub to_broker: Option<[u8; 16]>,
    /// The number of rows.
    pub rows: usize,
}

/// Returns the runs of rows with the same sender, and whether no row is encrypted.
///
/// # Errors
/// A column is missing or has the wrong type.
pub fn sender_runs(batches: &[RecordBatch]) -> Result<(Vec<SenderRun>, bool)> {
    let (mut runs, mut is_unencrypted) = (Vec::<SenderRun>::new(), true);
    for batch in batches {
        let fixed = |name| fixed_16(batch, name);
        let (conversations, brokers) = (fixed(fragments::CONVERSATION_ID)?, fixed(wire::TO_BROKER_INSTANCE)?);
        let sides = column(batch, fragments::IS_INITIATOR, "bool", |array| array.as_boolean_opt())?;
        let security = column(batch, wire::SECURITY, "int8", |array| array.as_primitive_opt::<Int8Type>())?;
        is_unencrypted &= security.values().iter().all(|&level| level == UNENCRYPTED);
        for row in 0..batch.num_rows() {
            let conversation_id = optional_16(conversations, row).unwrap_or_default();
            let run = SenderRun {
                conversation_id,
                is_initiator: sides.value(row),
                to_broker: optional_16(brokers, row),
                rows: 1,
            };
            match runs.last_mut() {
                Some(last) if (SenderRun { rows: 1, ..*last }) == run => last.rows += 1,
                _ => runs.push(run),
            }
        }
    }
    Ok((runs, is_unencrypted))
}

/// Returns the hop fields of new rows: hops remaining, time to live in seconds from `now`, and time consumed (0).
///
/// # Errors
/// A column is missing or has the wrong type.
pub fn first_hop(batches: &[RecordBatch], now: i64) -> Result<RecordBatch> {
    let mut left = Vec::new();
    for batch in batches {
        let ends = column(batch, wire::LIFETIME, "timestamp[us]", |array| {
            array.as_primitive_opt::<TimestampMicrosecondType>()
        })?;
        left.extend(ends.iter().map(|end| end.map_or(i32::MAX, |end| seconds(end.saturating_sub(now)))));
    }
    let rows = left.len();
    let fields = [wire::HOPS_REMAINING, wire::TIME_TO_LIVE, wire::TIME_CONSUMED];
    let schema = wire_schema();
    let fields: std::result::Result<Vec<_>, _> =
        fields.iter().map(|name| schema.field_with_name(name).cloned()).collect();
    let schema = Schema::new(fields.map_err(|error| internal(&error))?);
    let batch = RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(Int8Array::from(vec![HOPS; rows])),
            Arc::new(Int32Array::from(left)),
            Arc::new(Int32Array::from(vec![0; rows])),
        ],
    );
    batch.map_err(|error| internal(&error))
}

fn seconds(microseconds: i64) -> i32 {
    i32::try_from((microseconds / SECOND).max(0)).unwrap_or(i32::MAX)
}
