//! Reassembles record batches of fragments into messages (P11 to P18, P21, P23).

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, SchemaRef};
use ssbroker_core::reassembly::{
    Acknowledgement, Assembler, ExtraColumnSource, Limits, MessageBatch, Pending, Pushed, Received, Rejected, Rejection,
};
use ssbroker_core::{Guid, Header, Seed, Signature};

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, binary_16, split_rows};
use crate::columns::{MessageKeys, Source};
use crate::error::{Error, Result, internal};
use crate::extra_columns::{ExtraColumns, ExtraSchema, PushedExtraColumns};
use crate::invalid_rows::InvalidRows;
use crate::schema::{
    acknowledgements_schema, fragments as columns, item_field, messages_schema, pending_schema, rejected_schema,
};
use crate::session_keys::{RowKeys, SessionKeySource};
use crate::view::BytesView;

/// The number of fragments pushed at a time.
const BLOCK: usize = 1_024;
/// The number of rows read at a time: the bits of a word.
const READ_ROWS: usize = 64;

const HAS_FAILED: &str = "the result of an earlier push could not be built; continue from the last checkpoint";

/// Reassembles record batches.
#[derive(Debug)]
pub struct ReassemblyKernel {
    pub(crate) assembler: Assembler,
    /// The extra columns of the first push.
    pub(crate) extra_schema: Option<Arc<ExtraSchema>>,
    /// The result of a push could not be built: its messages are lost.
    pub(crate) has_failed: bool,
}

/// The result of a push; each part has at least one batch, except `invalid`.
#[derive(Debug)]
pub struct Reassembled {
    /// The released messages.
    pub messages: Vec<RecordBatch>,
    /// The rejected fragments.
    pub rejected: Vec<RecordBatch>,
    /// The acknowledgements of each direction.
    pub acknowledgements: Vec<RecordBatch>,
    /// The rows with an invalid value, which were not pushed.
    pub invalid: Vec<RecordBatch>,
}

/// The columns of a batch of fragments, validated so that reading them cannot fail.
#[derive(Debug)]
struct Fragments<'a> {
    first_row: usize,
    len: usize,
    message_keys: MessageKeys<'a>,
    numbers: ScalarBuffer<i32>,
    counts: ScalarBuffer<i32>,
    bodies: BytesView<'a>,
    message_signatures: Signatures<'a>,
    fragment_signatures: Signatures<'a>,
    keys: RowKeys<'a>,
}

#[derive(Debug)]
enum Signatures<'a> {
    Missing,
    /// 16 bytes each, without nulls.
    Fixed(&'a [[u8; 16]]),
    View(BytesView<'a>),
}

impl ReassemblyKernel {
    /// Creates a kernel with an empty assembler.
    #[must_use]
    pub fn new(limits: Limits, in_order: bool, seed: Seed) -> Self {
        Self { assembler: Assembler::new(limits, in_order, seed), extra_schema: None, has_failed: false }
    }

    /// Pushes all fragments of the batches in one push. With `skip_invalid`, rows with an invalid value are not
    /// pushed, but returned.
    ///
    /// # Errors
    /// A column is missing or has the wrong type, or a value is invalid and `skip_invalid` is false: nothing has changed.
    /// Or the result cannot be built, which is a bug: its messages are lost, and all later calls fail.
    pub fn push(
        &mut self,
        batches: &[RecordBatch],
        keys: SessionKeySource<'_>,
        skip_invalid: bool,
    ) -> Result<Reassembled> {
        self.check_usable()?;
        let found = InvalidRows::default();
        let invalid_rows = skip_invalid.then_some(&found);
        let (mut fragments, mut extra, mut starts, mut first_row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for batch in batches {
            let source = Source { batch, table: "", first_row, invalid_rows };
            fragments.push(Fragments::read(source, keys)?);
            extra.push(ExtraColumns::read(source, keys.column())?);
            starts.push(first_row);
            first_row += batch.num_rows();
        }
        let extra_schema = match (&self.extra_schema, extra.first()) {
            (Some(extra_schema), _) => Arc::clone(extra_schema),
            (None, Some(first)) => Arc::new(ExtraSchema::of(first)?),
            (None, None) => Arc::new(ExtraSchema::new(Vec::new())?),
        };
        let extra = extra.iter().map(|columns| extra_schema.conform(columns)).collect::<Result<Vec<_>>>()?;
        let (skipped, invalid) = (found.rows(), found.to_batches()?);
        let pushed_extra = PushedExtraColumns::new(&extra_schema, &extra, starts, &skipped);
        let source: &dyn ExtraColumnSource = if extra_schema.fields.is_empty() { &() } else { &pushed_extra };
        let body_bytes =
            fragments.iter().map(|fragments| fragments.bodies.total_bytes()).fold(0, usize::saturating_add);
        let blocks = fragments.iter().flat_map(|fragments| fragments.blocks(&skipped));
        let pushed = self.assembler.push(blocks, body_bytes, source);
        self.extra_schema = Some(Arc::clone(&extra_schema));
        let Pushed { messages, rejected, acknowledgements } = pushed;
        let built = || {
            pushed_extra.failure().map_or(Ok(()), Err)?;
            Ok(Reassembled {
                messages: message_batches(messages, &extra_schema, &pushed_extra)?,
                rejected: rejection_batches(&rejected)?,
                acknowledgements: acknowledgement_batches(&acknowledgements)?,
                invalid,
            })
        };
        let result = built();
        self.has_failed = result.is_err();
        result
    }

    /// Fails after a push that lost messages: continuing would acknowledge them.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.has_failed { Err(Error::Internal(HAS_FAILED.to_owned())) } else { Ok(()) }
    }

    /// Returns the incomplete or held messages, in at least one batch.
    ///
    /// # Errors
    /// The result of a push could not be built.
    pub fn pending(&self) -> Result<Vec<RecordBatch>> {
        self.check_usable()?;
        pending_batches(&self.assembler.pending())
    }

    /// Returns the total charge in bytes.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.assembler.pending_bytes()
    }

    /// Returns the number of incomplete or held messages.
    #[must_use]
    pub fn pending_messages(&self) -> u64 {
        self.assembler.pending_messages()
    }

    /// Drops an incomplete or held message; returns whether there was one.
    pub fn forget(&mut self, conversation: Guid, is_initiator: bool, sequence: i64) -> bool {
        self.assembler.forget(conversation, is_initiator, sequence)
    }
}

impl<'a> Fragments<'a> {
    fn read(source: Source<'a>, keys: SessionKeySource<'a>) -> Result<Self> {
        Ok(Self {
            first_row: source.first_row,
            len: source.batch.num_rows(),
            message_keys: MessageKeys::read(source)?,
            numbers: source.required_integers::<Int32Type>(columns::FRAGMENT_NUMBER)?,
            counts: source.required_integers::<Int32Type>(columns::FRAGMENT_COUNT)?,
            bodies: source.bytes(columns::MESSAGE_BODY)?,
            message_signatures: Signatures::new(source.optional_bytes(columns::MESSAGE_SIGNATURE)?),
            fragment_signatures: Signatures::new(source.optional_bytes(columns::FRAGMENT_SIGNATURE)?),
            keys: keys.read(source)?,
        })
    }

    /// Returns all rows in blocks, except the `skipped` ones, which are in ascending order.
    fn blocks(&self, skipped: &[usize]) -> impl Iterator<Item = Vec<Received<'_>>> {
        let blocks = (0..self.len).step_by(BLOCK).map(move |start| {
            let mut block = self.block(start);
            self.skip_rows(start, &mut block, skipped);
            block
        });
        blocks.filter(|block| !block.is_empty())
    }

    fn skip_rows(&self, start: usize, block: &mut Vec<Received<'_>>, skipped: &[usize]) {
        if skipped.is_empty() {
            return;
        }
        let mut row = self.first_row + start;
        let mut rest = &skipped[skipped.partition_point(|&skipped| skipped < row)..];
        block.retain(|_| {
            let is_skipped = rest.first() == Some(&row);
            rest = &rest[usize::from(is_skipped)..];
            row += 1;
            !is_skipped
        });
    }

    fn block(&self, start: usize) -> Vec<Received<'_>> {
        let end = self.len.min(start + BLOCK);
        let mut block = Vec::with_capacity(end - start);
        let mut bodies = [&[][..]; READ_ROWS];
        let mut message_signatures = [Signature::Missing; READ_ROWS];
        let mut fragment_signatures = [Signature::Missing; READ_ROWS];
        for start in (start..end).step_by(READ_ROWS) {
            let len = (end - start).min(READ_ROWS);
            // All bodies have been read successfully before.
            let _ = self.bodies.get_block(start, &mut bodies[..len]);
            self.message_signatures.get_block(start, &mut message_signatures[..len]);
            self.fragment_signatures.get_block(start, &mut fragment_signatures[..len]);
            block.extend((0..len).map(|position| {
                let header = self.header(start + position);
                Received {
                    header,
                    body: bodies[position],
                    message_signature: message_signatures[position],
                    fragment_signature: fragment_signatures[position],
                    key: self.keys.get(start + position, header.conversation),
                }
            }));
        }
        block
    }

    #[inline]
    fn header(&self, row: usize) -> Header {
        Header {
            conversation: self.message_keys.conversation(row),
            is_initiator: self.message_keys.is_initiator.value(row),
            sequence: self.message_keys.sequences[row],
            number: self.numbers[row],
            count: self.counts[row],
        }
    }
}

impl<'a> Signatures<'a> {
    fn new(view: Option<BytesView<'a>>) -> Self {
        let Some(view) = view else { return Self::Missing };
        match view.fixed(16) {
            Some(bytes) if view.first_null().is_none() => Self::Fixed(bytes.as_chunks().0),
            _ => Self::View(view),
        }
    }

    #[inline]
    fn get_block(&self, start: usize, into: &mut [Signature]) {
        match self {
            Self::Missing => {}
            Self::Fixed(all) => {
                for (signature, bytes) in into.iter_mut().zip(&all[start..]) {
                    *signature = Signature::Given(*bytes);
                }
            }
            Self::View(view) => {
                for (position, signature) in into.iter_mut().enumerate() {
                    *signature = signature_at(view, start + position);
                }
            }
        }
    }
}

fn signature_at(view: &BytesView<'_>, row: usize) -> Signature {
    if view.is_null(row) {
        return Signature::Missing;
    }
    let bytes = view.get(row).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(Signature::Unreadable, Signature::Given)
}

/// Builds the message batches (at least one) without copying the bodies.
pub(crate) fn message_batches(
    batches: Vec<MessageBatch>,
    extra_schema: &ExtraSchema,
    extra: &PushedExtraColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let schema = messages_schema(&extra_schema.fields);
    if batches.is_empty() {
        return Ok(vec![RecordBatch::new_empty(schema)]);
    }
    let mut built = Vec::with_capacity(batches.len());
    for batch in batches {
        let valid = NullBuffer::from(batch.is_signed);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(batch.offsets));
        let bodies = BinaryArray::try_new(offsets, Buffer::from_vec(shrink(batch.bodies)), None);
        let own: Vec<ArrayRef> = vec![
            binary_16(ids(batch.conversations), None)?,
            Arc::new(BooleanArray::from(batch.is_initiator)),
            Arc::new(Int64Array::from(batch.sequences)),
            Arc::new(bodies.map_err(|error| internal(&error))?),
            binary_16(batch.signatures, Some(valid).filter(|valid| valid.null_count() > 0))?,
        ];
        if extra_schema.fields.is_empty() {
            built.push(batch_of(&schema, own)?);
            continue;
        }
        for range in split_rows(batch.extra.iter().map(|of| extra.size(of)), BATCH_BYTES, usize::MAX) {
            let mut columns: Vec<_> = own.iter().map(|array| array.slice(range.start, range.len())).collect();
            columns.extend(extra.columns(&batch.extra[range]).map_err(|error| internal(&error))?);
            built.push(batch_of(&schema, columns)?);
        }
    }
    Ok(built)
}

/// Builds the batches (at least one) of rejected fragments.
pub(crate) fn rejection_batches(rejections: &[Rejection]) -> Result<Vec<RecordBatch>> {
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(Rejected::LABELS));
    build_in_batches(rejections, |rows| {
        let headers = || rows.iter().map(|row| row.header);
        let reasons = Int8Array::from_iter_values(rows.iter().map(|row| row.reason as i8));
        let reasons = DictionaryArray::<Int8Type>::try_new(reasons, Arc::clone(&labels));
        let columns: Vec<ArrayRef> = vec![
            binary_16(headers().map(|header| header.conversation.0).collect(), None)?,
            Arc::new(BooleanArray::new(headers().map(|header| header.is_initiator).collect(), None)),
            Arc::new(Int64Array::from_iter_values(headers().map(|header| header.sequence))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.number))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.count))),
            Arc::new(reasons.map_err(|error| internal(&error))?),
        ];
        batch_of(&rejected_schema(), columns)
    })
}

/// Builds the acknowledgement batches (at least one).
pub(crate) fn acknowledgement_batches(all: &[Acknowledgement]) -> Result<Vec<RecordBatch>> {
    let bytes = |row: &Acknowledgement| row.partial.as_ref().map_or(0, |(_, fragments)| 4 * fragments.len());
    let ranges = split_rows(all.iter().map(bytes), BATCH_BYTES, BATCH_ROWS);
    ranges.into_iter().map(|range| acknowledgement_batch(&all[range])).collect()
}

fn acknowledgement_batch(rows: &[Acknowledgement]) -> Result<RecordBatch> {
    let valid: NullBuffer = rows.iter().map(|row| row.partial.is_some()).collect();
    let partial = || rows.iter().map(|row| row.partial.as_ref());
    let lengths = partial().map(|partial| partial.map_or(0, |(_, fragments)| fragments.len()));
    let offsets = OffsetBuffer::from_lengths(lengths);
    // The numbers of all received fragments are repeated in every acknowledgement, so this can be large.
    let fragments = partial().flatten().map(|(_, fragments)| fragments.as_slice()).collect::<Vec<_>>().concat();
    let fragments = ListArray::try_new(item_field(), offsets, Arc::new(Int32Array::from(fragments)), Some(valid));
    let columns: Vec<ArrayRef> = vec![
        binary_16(rows.iter().map(|row| row.conversation.0).collect(), None)?,
        Arc::new(BooleanArray::new(rows.iter().map(|row| row.is_initiator).collect(), None)),
        Arc::new(rows.iter().map(|row| row.acked).collect::<Int64Array>()),
        Arc::new(partial().map(|partial| partial.map(|&(sequence, _)| sequence)).collect::<Int64Array>()),
        Arc::new(fragments.map_err(|error| internal(&error))?),
    ];
    batch_of(&acknowledgements_schema(), columns)
}

/// Builds the batches (at least one) of pending messages.
pub(crate) fn pending_batches(all: &[Pending]) -> Result<Vec<RecordBatch>> {
    build_in_batches(all, |rows| {
        let columns: Vec<ArrayRef> = vec![
            binary_16(rows.iter().map(|row| row.conversation.0).collect(), None)?,
            Arc::new(BooleanArray::new(rows.iter().map(|row| row.is_initiator).collect(), None)),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.sequence))),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.count))),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.received as i32))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.bytes as i64))),
            Arc::new(rows.iter().map(|row| row.first_missing).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|row| row.waits_for).collect::<Int64Array>()),
        ];
        batch_of(&pending_schema(), columns)
    })
}

fn build_in_batches<T>(rows: &[T], build: impl Fn(&[T]) -> Result<RecordBatch>) -> Result<Vec<RecordBatch>> {
    if rows.is_empty() { build(rows).map(|batch| vec![batch]) } else { rows.chunks(BATCH_ROWS).map(build).collect() }
}

/// Shrinks a buffer that is less than half full, because results may be kept for long.
fn shrink(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() / 2 > bytes.len() {
        bytes.shrink_to_fit();
    }
    bytes
}

fn ids(guids: Vec<Guid>) -> Vec<[u8; 16]> {
    guids.into_iter().map(|guid| guid.0).collect()
}

fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns);
    batch.map_err(|error: ArrowError| internal(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_continues_after_a_push_that_lost_messages() {
        let mut kernel = ReassemblyKernel::new(Limits::NONE, true, Seed([1, 2]));
        assert!(kernel.push(&[], SessionKeySource::None, false).is_ok());
        kernel.has_failed = true;
        let errors = [
            kernel.push(&[], SessionKeySource::None, false).map(|_| ()),
            kernel.pending().map(|_| ()),
            kernel.checkpoint().map(|_| ()),
        ];
        for error in errors {
            assert_eq!(error.unwrap_err().to_string(), HAS_FAILED);
        }
    }
}
