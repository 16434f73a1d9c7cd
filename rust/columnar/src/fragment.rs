//! Splits messages into signed fragments (P13).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Int32Array, Int64Array, RecordBatch, UInt32Array};
use arrow_buffer::{BooleanBuffer, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::take::take;
use ssbroker_core::{Digest, Header, InvalidKind};
use ssbroker_md5::digest_many;

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, binary_16, split_rows};
use crate::columns::{MessageKeys, Source};
use crate::error::{Result, internal};
use crate::extra_columns::ExtraColumns;
use crate::schema::{fragments as columns, fragments_schema};
use crate::session_keys::{RowKeys, SessionKeySource};
use crate::view::BytesView;

/// The number of bodies to digest at a time.
const BLOCK: usize = 8_192;
/// The maximum size of an Arrow value in bytes.
const BODY_BYTES_MAX: usize = i32::MAX as usize;

/// The message's row, and the fragment number.
type FragmentIndex = (u32, i32);

/// A batch of messages, validated and signed.
#[derive(Debug)]
struct Messages<'a> {
    message_keys: MessageKeys<'a>,
    bodies: BytesView<'a>,
    shared: Option<SharedBodies<'a>>,
    max_fragment_bytes: usize,
    /// The number of fragments of each message.
    counts: Vec<i32>,
    digests: Vec<Digest>,
    /// Empty if they equal the digests.
    signatures: Vec<Digest>,
    keys: RowKeys<'a>,
    extra: ExtraColumns,
}

/// Bodies in one contiguous buffer, which fragments can share.
#[derive(Debug)]
struct SharedBodies<'a> {
    values: Buffer,
    offsets: Offsets<'a>,
}

#[derive(Debug)]
enum Offsets<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

/// Splits the messages of a batch into fragments of at most `max_fragment_bytes`. `first_row` is the index of the
/// batch's first row in the whole input, for errors. Returns at least one batch.
///
/// # Errors
/// A column is missing or has the wrong type, or a value is invalid.
pub fn fragment(
    batch: &RecordBatch,
    first_row: usize,
    max_fragment_bytes: usize,
    keys: SessionKeySource<'_>,
) -> Result<Vec<RecordBatch>> {
    let source = Source { batch, table: "", first_row, invalid_rows: None };
    let messages = Messages::read(source, max_fragment_bytes.max(1), keys)?;
    let schema = fragments_schema(&messages.extra.fields);
    let limit = if messages.shared.is_some() { BODY_BYTES_MAX } else { BATCH_BYTES };
    let extra = messages.extra.sizes();
    let size = |part: FragmentIndex| {
        let extra_bytes: usize = extra.iter().map(|sizes| sizes.get(part.0 as usize)).sum();
        messages.part(part).len() + extra_bytes
    };
    let ranges = split_rows(messages.parts().map(size), limit, BATCH_ROWS);
    let mut parts = messages.parts();
    let mut next = |count| parts.by_ref().take(count).collect::<Vec<_>>();
    ranges.into_iter().map(|range| messages.fragment_batch(&schema, &next(range.len()))).collect()
}

impl<'a> Messages<'a> {
    fn read(source: Source<'a>, max_fragment_bytes: usize, keys: SessionKeySource<'a>) -> Result<Self> {
        let message_keys = MessageKeys::read(source)?;
        if let Some(row) = message_keys.sequences.iter().position(|sequence| !(0..i64::MAX).contains(sequence)) {
            let (shown, expected) = (message_keys.sequences[row].to_string(), "a number from 0 to 2^63 - 2");
            let (kind, name) = (InvalidKind::OutOfRange, columns::MESSAGE_SEQUENCE_NUMBER);
            return Err(source.invalid(kind, name, row, Some(shown.as_bytes()), expected));
        }
        let bodies = source.bytes(columns::MESSAGE_BODY)?;
        let extra = ExtraColumns::read(source, keys.column())?;
        let keys = keys.read(source)?;
        let rows = source.batch.num_rows();
        let shared = source.column(columns::MESSAGE_BODY)?.and_then(SharedBodies::new);
        let mut messages = Self {
            message_keys,
            bodies,
            shared,
            max_fragment_bytes,
            counts: Vec::with_capacity(rows),
            digests: vec![[0; 16]; rows],
            signatures: Vec::new(),
            keys,
            extra,
        };
        messages.count(source)?;
        messages.sign(source)?;
        Ok(messages)
    }

    fn count(&mut self, source: Source<'_>) -> Result<()> {
        for row in 0..source.batch.num_rows() {
            let len = self.body(row).len();
            if len > BODY_BYTES_MAX {
                let (shown, expected) = (format!("{len} bytes"), "at most 2^31 - 1 bytes");
                let name = columns::MESSAGE_BODY;
                return Err(source.invalid(InvalidKind::OutOfRange, name, row, Some(shown.as_bytes()), expected));
            }
            self.counts.push(len.div_ceil(self.max_fragment_bytes).max(1) as i32);
        }
        Ok(())
    }

    fn sign(&mut self, source: Source<'_>) -> Result<()> {
        let mut bodies = vec![&[][..]; BLOCK.min(self.counts.len())];
        for (number, digests) in self.digests.chunks_mut(BLOCK).enumerate() {
            let bodies = &mut bodies[..digests.len()];
            let unreadable = |row| source.out_of_bounds(columns::MESSAGE_BODY, row);
            self.bodies.get_block(number * BLOCK, bodies).map_err(unreadable)?;
            digest_many(bodies, digests);
        }
        if !matches!(self.keys, RowKeys::None) {
            let sign = |row: usize| {
                let header = self.header((row as u32, 0));
                let key = self.keys.get(row, header.conversation);
                key.map_or(self.digests[row], |key| key.message_signature(&header, self.digests[row]))
            };
            self.signatures = (0..self.counts.len()).map(sign).collect();
        }
        Ok(())
    }

    /// Returns the fragments of all messages in order.
    fn parts(&self) -> impl Iterator<Item = FragmentIndex> {
        self.counts.iter().enumerate().flat_map(|(row, &count)| (0..count).map(move |number| (row as u32, number)))
    }

    fn body(&self, row: usize) -> &'a [u8] {
        // All bodies have been read successfully before.
        self.bodies.get(row).unwrap_or_default()
    }

    fn part(&self, (row, number): FragmentIndex) -> &'a [u8] {
        let body = self.body(row as usize);
        let start = number as usize * self.max_fragment_bytes;
        &body[start..body.len().min(start + self.max_fragment_bytes)]
    }

    fn header(&self, (row, number): FragmentIndex) -> Header {
        let row = row as usize;
        Header {
            conversation: self.message_keys.conversation(row),
            is_initiator: self.message_keys.is_initiator.value(row),
            sequence: self.message_keys.sequences[row],
            number,
            count: self.counts[row],
        }
    }

    fn signature(&self, row: usize) -> Digest {
        *self.signatures.get(row).unwrap_or(&self.digests[row])
    }

    /// Builds a batch of consecutive fragments.
    fn fragment_batch(&self, schema: &SchemaRef, parts: &[FragmentIndex]) -> Result<RecordBatch> {
        let rows = || parts.iter().map(|&(row, _)| row as usize);
        let is_initiator = BooleanBuffer::collect_bool(parts.len(), |position| {
            self.message_keys.is_initiator.value(parts[position].0 as usize)
        });
        let mut arrays: Vec<ArrayRef> = vec![
            binary_16(rows().map(|row| self.message_keys.conversations[row]).collect(), None)?,
            Arc::new(BooleanArray::new(is_initiator, None)),
            Arc::new(Int64Array::from_iter_values(rows().map(|row| self.message_keys.sequences[row]))),
            Arc::new(Int32Array::from_iter_values(parts.iter().map(|&(_, number)| number))),
            Arc::new(Int32Array::from_iter_values(rows().map(|row| self.counts[row]))),
            self.bodies_of(parts)?,
            binary_16(rows().map(|row| self.signature(row)).collect(), None)?,
            binary_16(self.fragment_signatures(parts), None)?,
        ];
        let rows = UInt32Array::from_iter_values(parts.iter().map(|&(row, _)| row));
        for array in &self.extra.arrays {
            arrays.push(take(array, &rows, None).map_err(|error| internal(&error))?);
        }
        RecordBatch::try_new(Arc::clone(schema), arrays).map_err(|error| internal(&error))
    }

    fn bodies_of(&self, parts: &[FragmentIndex]) -> Result<ArrayRef> {
        let lengths = parts.iter().map(|&part| self.part(part).len() as i32);
        let ends = lengths.scan(0i32, |end, len| {
            *end += len;
            Some(*end)
        });
        let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
        let total = offsets.last().map_or(0, |&end| end as usize);
        let values = if let (Some(shared), Some(&(row, number))) = (&self.shared, parts.first()) {
            let start = shared.offsets.start(row as usize) + number as usize * self.max_fragment_bytes;
            shared.values.slice_with_length(start, total)
        } else {
            let mut values = Vec::with_capacity(total);
            for &part in parts {
                values.extend_from_slice(self.part(part));
            }
            Buffer::from_vec(values)
        };
        let bodies = BinaryArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), values, None);
        Ok(Arc::new(bodies.map_err(|error| internal(&error))?))
    }

    /// Signs fragments; if a message has only one fragment, that fragment has the digest of the message.
    fn fragment_signatures(&self, parts: &[FragmentIndex]) -> Vec<Digest> {
        let is_whole = |part: &FragmentIndex| self.counts[part.0 as usize] == 1;
        let bodies: Vec<&[u8]> = parts.iter().filter(|part| !is_whole(part)).map(|&part| self.part(part)).collect();
        let mut digests = vec![[0; 16]; bodies.len()];
        digest_many(&bodies, &mut digests);
        let mut digests = digests.into_iter();
        let sign = |part: &FragmentIndex| {
            let row = part.0 as usize;
            let known = if is_whole(part) { None } else { digests.next() };
            let digest = known.unwrap_or(self.digests[row]);
            let header = self.header(*part);
            let key = self.keys.get(row, header.conversation);
            key.map_or(digest, |key| key.fragment_signature(&header, &self.signature(row), digest))
        };
        parts.iter().map(sign).collect()
    }
}

impl<'a> SharedBodies<'a> {
    fn new(bodies: &'a ArrayRef) -> Option<Self> {
        let (values, offsets) = match bodies.data_type() {
            DataType::Binary => {
                let bodies = bodies.as_binary::<i32>();
                (bodies.values(), Offsets::Narrow(bodies.value_offsets()))
            }
            DataType::LargeBinary => {
                let bodies = bodies.as_binary::<i64>();
                (bodies.values(), Offsets::Wide(bodies.value_offsets()))
            }
            _ => return None,
        };
        Some(Self { values: values.clone(), offsets })
    }
}

impl Offsets<'_> {
    fn start(&self, row: usize) -> usize {
        match self {
            Self::Narrow(offsets) => offsets[row] as usize,
            Self::Wide(offsets) => offsets[row] as usize,
        }
    }
}
