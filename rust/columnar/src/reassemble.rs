//! Fragments in, whole messages in order out (P11 to P18, P21, P23).

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::types::Int32Type;
use arrow_buffer::ScalarBuffer;
use ssbroker_core::reassembly::{Assembler, Further, Limits, Pushed, Received};
use ssbroker_core::{Guid, Header, Seed, Signature};

use crate::carry::{Carried, Shape};
use crate::error::Result;
use crate::further::FurtherColumns;
use crate::keys::{Keys, RowKeys};
use crate::read::Source;
use crate::rows::Places;
use crate::schema::fragments as columns;
use crate::told;
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
    pub(crate) shape: Option<Arc<Shape>>,
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
        let (mut fragments, mut further, mut starts, mut first_row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for batch in batches {
            let source = Source { batch, table: "", first_row };
            fragments.push(Fragments::read(source, keys)?);
            further.push(FurtherColumns::read(source, keys.column())?);
            starts.push(first_row);
            first_row += batch.num_rows();
        }
        let shape = match (&self.shape, further.first()) {
            (Some(shape), _) => Arc::clone(shape),
            (None, Some(first)) => Arc::new(Shape::of(first)?),
            (None, None) => Arc::new(Shape::new(Vec::new())?),
        };
        let further = further.iter().map(|columns| shape.arrange(columns)).collect::<Result<Vec<_>>>()?;
        let carried = Carried::new(&shape, &further, starts);
        let further: &dyn Further = if shape.fields.is_empty() { &() } else { &carried };
        let body_bytes = fragments.iter().map(|fragments| fragments.bodies.total_bytes()).sum();
        let pushed = self.assembler.push(fragments.iter().flat_map(Fragments::blocks), body_bytes, further);
        self.shape = Some(Arc::clone(&shape));
        carried.failure().map_or(Ok(()), Err)?;
        let Pushed { messages, rejected, acknowledgements } = pushed;
        Ok(Reassembled {
            messages: told::messages(messages, &shape, &carried)?,
            rejected: told::rejected(&rejected)?,
            acknowledgements: told::acknowledgements(&acknowledgements)?,
        })
    }

    /// The messages that are incomplete or held (M22), in at least one batch.
    ///
    /// # Errors
    /// None that is known.
    pub fn pending(&self) -> Result<Vec<RecordBatch>> {
        told::pending(&self.assembler.pending())
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
                    *signature = read(view, start + place);
                }
            }
        }
    }
}

fn read(view: &BytesView<'_>, row: usize) -> Signature {
    if view.is_null(row) {
        return Signature::Missing;
    }
    let bytes = view.get(row).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(Signature::Unreadable, Signature::Given)
}
