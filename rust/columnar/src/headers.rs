//! What the header of a plain fragment is signed with on its way (P21): the MD5 of all that its row says, but of the body.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Int8Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use ssbroker_md5::digest_many;

use crate::arrays::sixteens;
use crate::error::{Error, Result};
use crate::schema::{fragments, wire};

const ABSENT: [u8; 16] = [0; 16];
/// In place of the length of a name that is not there.
const NO_NAME: u32 = u32::MAX;
const BOUND: u16 = 1 << 4;
const IDENTIFIED: u16 = 1 << 5;
const ENDS: u16 = 1 << 6;

/// The digest of each row's header, of all the batches. An error of the broker, which has no number, has its body in it.
///
/// # Errors
/// A column is not there, or of another type.
pub fn header_digests(batches: &[RecordBatch]) -> Result<ArrayRef> {
    let mut digests = Vec::new();
    for batch in batches {
        digests.extend(digests_of(&Columns::new(batch)?, 0..batch.num_rows()));
    }
    sixteens(digests, None)
}

/// The digests of the headers of these rows.
pub(crate) fn digests_of(columns: &Columns<'_>, rows: impl Iterator<Item = usize>) -> Vec<[u8; 16]> {
    let mut signed = Vec::new();
    let mut ends = Vec::with_capacity(rows.size_hint().0);
    for row in rows {
        columns.sign(row, &mut signed);
        ends.push(signed.len());
    }
    let mut start = 0;
    let headers: Vec<&[u8]> = ends.iter().map(|&end| &signed[std::mem::replace(&mut start, end)..end]).collect();
    let mut digests = vec![ABSENT; headers.len()];
    digest_many(&headers, &mut digests);
    digests
}

/// The columns of the envelope, but for the header's signature.
pub(crate) struct Columns<'a> {
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
    pub(crate) ahead: &'a BinaryArray,
    pub(crate) body: &'a BinaryArray,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(batch: &'a RecordBatch) -> Result<Self> {
        let fixed = |name| column(batch, name, "binary(16)", |array| array.as_fixed_size_binary_opt());
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
            ahead: bytes(wire::ACKED_AHEAD)?,
            body: bytes(fragments::MESSAGE_BODY)?,
        })
    }

    /// What headers are signed with.
    pub(crate) fn signature(batch: &'a RecordBatch) -> Result<&'a FixedSizeBinaryArray> {
        column(batch, wire::HEADER_SIGNATURE, "binary(16)", |array| array.as_fixed_size_binary_opt())
    }

    /// Appends what the signature of a row's header is of.
    fn sign(&self, row: usize, into: &mut Vec<u8>) {
        let [_, is_sequenced, ..] = self.flags;
        let mut flags: u16 = (0..).zip(self.flags).map(|(bit, flag)| u16::from(flag.value(row)) << bit).sum();
        for (column, bit) in
            [(self.to_broker as &dyn Array, BOUND), (self.message_id, IDENTIFIED), (self.lifetime, ENDS)]
        {
            flags |= if column.is_valid(row) { bit } else { 0 };
        }
        for guid in [self.conversation, self.from_broker, self.to_broker, self.message_id] {
            into.extend_from_slice(value(guid, row).unwrap_or(&ABSENT));
        }
        into.extend_from_slice(&self.sequence.value(row).to_be_bytes());
        into.extend_from_slice(&self.fragment.value(row).to_be_bytes());
        into.extend_from_slice(&self.count.value(row).to_be_bytes());
        into.extend_from_slice(&known(self.lifetime.is_valid(row), self.lifetime.value(row)).to_be_bytes());
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
        let ahead = self.ahead.is_valid(row).then(|| self.ahead.value(row));
        let acked = self.acked.is_valid(row);
        let there = [message.is_some(), fragment.is_some(), acked, ahead.is_some()];
        into.push((0..).zip(there).map(|(bit, is)| u8::from(is) << bit).sum());
        into.extend_from_slice(&known(acked, self.acked.value(row)).to_be_bytes());
        into.extend_from_slice(&length(ahead.unwrap_or_default()).to_be_bytes());
        for part in [message, fragment, ahead].into_iter().flatten() {
            into.extend_from_slice(part);
        }
        if !is_sequenced.value(row) {
            into.extend_from_slice(self.body.value(row));
        }
    }
}

/// A column, as arrays of its type have it.
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
        actual: found.map(|array| array.data_type().to_string()),
    })
}

fn value(column: &FixedSizeBinaryArray, row: usize) -> Option<&[u8]> {
    column.is_valid(row).then(|| column.value(row))
}

/// What is null counts as zero, whatever stands in its place.
fn known(is_valid: bool, value: i64) -> i64 {
    if is_valid { value } else { 0 }
}

/// As four bytes hold it; no value of a row is longer.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(NO_NAME)
}
