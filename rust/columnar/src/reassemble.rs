//! Fragments in, whole messages in order out (P11 to P18, P21, P23).

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

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, cut, sixteens};
use crate::columns::{Places, Source};
use crate::error::{Result, internal};
use crate::extra_columns::{ExtraColumns, ExtraSchema, PushedExtraColumns};
use crate::schema::{
    acknowledgements_schema, fragments as columns, item_field, messages_schema, pending_schema, rejected_schema,
};
use crate::session_keys::{Keys, RowKeys};
use crate::view::BytesView;

/// How many fragments are handed over at a time.
const BLOCK: usize = 1_024;
/// How many are read at a time: as many as there are bits in a word.
const WORD: usize = 64;

/// An assembler of record batches.
#[derive(Debug)]
pub struct ReassemblyKernel {
    pub(crate) assembler: Assembler,
    /// The further columns of the first push.
    pub(crate) shape: Option<Arc<ExtraSchema>>,
}

/// What a push gives back; each in at least one batch.
#[derive(Debug)]
pub struct Reassembled {
    /// The messages that could be released.
    pub messages: Vec<RecordBatch>,
    /// The fragments that were rejected.
    pub rejected: Vec<RecordBatch>,
    /// What is acknowledged of each direction.
    pub acknowledgements: Vec<RecordBatch>,
}

/// The columns of a batch of fragments, checked: nothing that is read of them can fail.
#[derive(Debug)]
struct Fragments<'a> {
    len: usize,
    places: Places<'a>,
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
    /// All are there, one after the other.
    Plain(&'a [[u8; 16]]),
    View(BytesView<'a>),
}

impl ReassemblyKernel {
    /// A kernel over a new assembler.
    #[must_use]
    pub fn new(limits: Limits, in_order: bool, seed: Seed) -> Self {
        Self { assembler: Assembler::new(limits, in_order, seed), shape: None }
    }

    /// Takes fragments in, all of them as one push.
    ///
    /// # Errors
    /// A missing or mistyped column, or the first value that is not what was expected; then nothing has changed.
    pub fn push(&mut self, batches: &[RecordBatch], keys: Keys<'_>) -> Result<Reassembled> {
        let (mut fragments, mut extra, mut starts, mut first_row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for batch in batches {
            let source = Source { batch, table: "", first_row };
            fragments.push(Fragments::read(source, keys)?);
            extra.push(ExtraColumns::read(source, keys.column())?);
            starts.push(first_row);
            first_row += batch.num_rows();
        }
        let shape = match (&self.shape, extra.first()) {
            (Some(shape), _) => Arc::clone(shape),
            (None, Some(first)) => Arc::new(ExtraSchema::of(first)?),
            (None, None) => Arc::new(ExtraSchema::new(Vec::new())?),
        };
        let extra = extra.iter().map(|columns| shape.arrange(columns)).collect::<Result<Vec<_>>>()?;
        let carried = PushedExtraColumns::new(&shape, &extra, starts);
        let extra: &dyn ExtraColumnSource = if shape.fields.is_empty() { &() } else { &carried };
        let body_bytes = fragments.iter().map(|fragments| fragments.bodies.total_bytes()).sum();
        let pushed = self.assembler.push(fragments.iter().flat_map(Fragments::blocks), body_bytes, extra);
        self.shape = Some(Arc::clone(&shape));
        carried.failure().map_or(Ok(()), Err)?;
        let Pushed { messages, rejected, acknowledgements } = pushed;
        Ok(Reassembled {
            messages: message_batches(messages, &shape, &carried)?,
            rejected: rejection_batches(&rejected)?,
            acknowledgements: acknowledgement_batches(&acknowledgements)?,
        })
    }

    /// The messages that are incomplete or held (M22), in at least one batch.
    ///
    /// # Errors
    /// None that is known.
    pub fn pending(&self) -> Result<Vec<RecordBatch>> {
        pending_batches(&self.assembler.pending())
    }

    /// What is charged for all that is remembered, in bytes (M18).
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.assembler.pending_bytes()
    }

    /// How many messages are incomplete or held.
    #[must_use]
    pub fn pending_messages(&self) -> u64 {
        self.assembler.pending_messages()
    }

    /// Drops an incomplete or held message (M24); whether there was one.
    pub fn forget(&mut self, conversation: Guid, is_initiator: bool, sequence: i64) -> bool {
        self.assembler.forget(conversation, is_initiator, sequence)
    }
}

impl<'a> Fragments<'a> {
    fn read(source: Source<'a>, keys: Keys<'a>) -> Result<Self> {
        Ok(Self {
            len: source.batch.num_rows(),
            places: Places::read(source)?,
            numbers: source.required_integers::<Int32Type>(columns::FRAGMENT_NUMBER)?,
            counts: source.required_integers::<Int32Type>(columns::FRAGMENT_COUNT)?,
            bodies: source.bytes(columns::MESSAGE_BODY)?,
            message_signatures: Signatures::new(source.optional_bytes(columns::MESSAGE_SIGNATURE)?),
            fragment_signatures: Signatures::new(source.optional_bytes(columns::FRAGMENT_SIGNATURE)?),
            keys: keys.read(source)?,
        })
    }

    fn blocks(&self) -> impl Iterator<Item = Vec<Received<'_>>> {
        (0..self.len).step_by(BLOCK).map(|start| self.block(start))
    }

    fn block(&self, start: usize) -> Vec<Received<'_>> {
        let end = self.len.min(start + BLOCK);
        let mut block = Vec::with_capacity(end - start);
        let mut bodies = [&[][..]; WORD];
        let mut message_signatures = [Signature::Missing; WORD];
        let mut fragment_signatures = [Signature::Missing; WORD];
        for start in (start..end).step_by(WORD) {
            let len = (end - start).min(WORD);
            // All of them were read before.
            let _ = self.bodies.get_block(start, &mut bodies[..len]);
            self.message_signatures.get_block(start, &mut message_signatures[..len]);
            self.fragment_signatures.get_block(start, &mut fragment_signatures[..len]);
            block.extend((0..len).map(|place| {
                let header = self.header(start + place);
                Received {
                    header,
                    body: bodies[place],
                    message_signature: message_signatures[place],
                    fragment_signature: fragment_signatures[place],
                    key: self.keys.get(start + place, header.conversation),
                }
            }));
        }
        block
    }

    #[inline]
    fn header(&self, row: usize) -> Header {
        Header {
            conversation: self.places.conversation(row),
            is_initiator: self.places.is_initiator.value(row),
            sequence: self.places.sequences[row],
            number: self.numbers[row],
            count: self.counts[row],
        }
    }
}

impl<'a> Signatures<'a> {
    fn new(view: Option<BytesView<'a>>) -> Self {
        let Some(view) = view else { return Self::Missing };
        match view.fixed(16) {
            Some(bytes) if view.first_null().is_none() => Self::Plain(bytes.as_chunks().0),
            _ => Self::View(view),
        }
    }

    #[inline]
    fn get_block(&self, start: usize, into: &mut [Signature]) {
        match self {
            Self::Missing => {}
            Self::Plain(all) => {
                for (signature, bytes) in into.iter_mut().zip(&all[start..]) {
                    *signature = Signature::Given(*bytes);
                }
            }
            Self::View(view) => {
                for (place, signature) in into.iter_mut().enumerate() {
                    *signature = signature_at(view, start + place);
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

// What a reassembly gives back, as record batches.

/// Messages, in at least one batch; the bodies are not copied.
pub(crate) fn message_batches(
    batches: Vec<MessageBatch>,
    shape: &ExtraSchema,
    carried: &PushedExtraColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let schema = messages_schema(&shape.fields);
    if batches.is_empty() {
        return Ok(vec![RecordBatch::new_empty(schema)]);
    }
    let mut told = Vec::with_capacity(batches.len());
    for batch in batches {
        let valid = NullBuffer::from(batch.is_signed);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(batch.offsets));
        let bodies = BinaryArray::try_new(offsets, Buffer::from_vec(fitting(batch.bodies)), None);
        let own: Vec<ArrayRef> = vec![
            sixteens(ids(batch.conversations), None)?,
            Arc::new(BooleanArray::from(batch.is_initiator)),
            Arc::new(Int64Array::from(batch.sequences)),
            Arc::new(bodies.map_err(|error| internal(&error))?),
            sixteens(batch.signatures, Some(valid).filter(|valid| valid.null_count() > 0))?,
        ];
        if shape.fields.is_empty() {
            told.push(batch_of(&schema, own)?);
            continue;
        }
        for range in cut(batch.extra.iter().map(|of| carried.size(of)), BATCH_BYTES, usize::MAX) {
            let mut columns: Vec<_> = own.iter().map(|array| array.slice(range.start, range.len())).collect();
            columns.extend(carried.columns(&batch.extra[range]).map_err(|error| internal(&error))?);
            told.push(batch_of(&schema, columns)?);
        }
    }
    Ok(told)
}

/// Rejected fragments, in at least one batch.
pub(crate) fn rejection_batches(rejections: &[Rejection]) -> Result<Vec<RecordBatch>> {
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(Rejected::LABELS));
    in_pieces(rejections, |rows| {
        let headers = || rows.iter().map(|row| row.header);
        let reasons = Int8Array::from_iter_values(rows.iter().map(|row| row.reason as i8));
        let reasons = DictionaryArray::<Int8Type>::try_new(reasons, Arc::clone(&labels));
        let columns: Vec<ArrayRef> = vec![
            sixteens(headers().map(|header| header.conversation.0).collect(), None)?,
            Arc::new(BooleanArray::new(headers().map(|header| header.is_initiator).collect(), None)),
            Arc::new(Int64Array::from_iter_values(headers().map(|header| header.sequence))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.number))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.count))),
            Arc::new(reasons.map_err(|error| internal(&error))?),
        ];
        batch_of(&rejected_schema(), columns)
    })
}

/// Acknowledgements, in at least one batch.
pub(crate) fn acknowledgement_batches(all: &[Acknowledgement]) -> Result<Vec<RecordBatch>> {
    let bytes = |row: &Acknowledgement| row.partial.as_ref().map_or(0, |(_, fragments)| 4 * fragments.len());
    let ranges = cut(all.iter().map(bytes), BATCH_BYTES, BATCH_ROWS);
    ranges.into_iter().map(|range| acknowledgement_batch(&all[range])).collect()
}

fn acknowledgement_batch(rows: &[Acknowledgement]) -> Result<RecordBatch> {
    let valid: NullBuffer = rows.iter().map(|row| row.partial.is_some()).collect();
    let partial = || rows.iter().map(|row| row.partial.as_ref());
    let lengths = partial().map(|partial| partial.map_or(0, |(_, fragments)| fragments.len()));
    let offsets = OffsetBuffer::from_lengths(lengths);
    // Of a message of many fragments the numbers of all that are there are told again and again.
    let fragments = partial().flatten().map(|(_, fragments)| fragments.as_slice()).collect::<Vec<_>>().concat();
    let fragments = ListArray::try_new(item_field(), offsets, Arc::new(Int32Array::from(fragments)), Some(valid));
    let columns: Vec<ArrayRef> = vec![
        sixteens(rows.iter().map(|row| row.conversation.0).collect(), None)?,
        Arc::new(BooleanArray::new(rows.iter().map(|row| row.is_initiator).collect(), None)),
        Arc::new(rows.iter().map(|row| row.acked).collect::<Int64Array>()),
        Arc::new(partial().map(|partial| partial.map(|&(sequence, _)| sequence)).collect::<Int64Array>()),
        Arc::new(fragments.map_err(|error| internal(&error))?),
    ];
    batch_of(&acknowledgements_schema(), columns)
}

/// Pending messages, in at least one batch.
pub(crate) fn pending_batches(all: &[Pending]) -> Result<Vec<RecordBatch>> {
    in_pieces(all, |rows| {
        let columns: Vec<ArrayRef> = vec![
            sixteens(rows.iter().map(|row| row.conversation.0).collect(), None)?,
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

fn in_pieces<T>(rows: &[T], tell: impl Fn(&[T]) -> Result<RecordBatch>) -> Result<Vec<RecordBatch>> {
    if rows.is_empty() { tell(rows).map(|batch| vec![batch]) } else { rows.chunks(BATCH_ROWS).map(tell).collect() }
}

/// The bytes in no more than twice the room that they need: results may be kept for long.
fn fitting(mut bytes: Vec<u8>) -> Vec<u8> {
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
