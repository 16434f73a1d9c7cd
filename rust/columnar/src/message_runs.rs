//! Runs of whole messages from one sender, either received from the network or waiting to be sent.
//!
//! Working on runs avoids handling each message separately. Everything about a row that can be checked without
//! knowing its conversation is checked here.

use std::collections::{HashMap, HashSet};
use std::iter::repeat_n;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Int8Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt32Array,
};
use arrow_schema::{Schema, SchemaRef};
use arrow_select::take::take;
use ssbroker_md5::digest_many;

use crate::arrays::binary_16;
use crate::envelope::{EnvelopeColumns, UNENCRYPTED, column, digests_of, fixed_16, optional_16};
use crate::error::{Error, Result, internal};
use crate::schema::{fragments, wire, wire_schema};

/// The run number of rows that are in no run.
const NONE: i32 = -1;

/// A run of received messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingRun {
    /// The conversation id.
    pub conversation_id: [u8; 16],
    /// Whether the initiator sent them.
    pub is_initiator: bool,
    /// The broker id of the sender.
    pub from_broker: Option<[u8; 16]>,
    /// The broker id of the receiver.
    pub to_broker: Option<[u8; 16]>,
    /// The sending service, the receiving service, the contract and the message type.
    pub names: [String; 4],
    /// The sequence number of the first message; the rest follow without gaps.
    pub first: i64,
    /// The number of messages.
    pub count: usize,
    /// The total size of their bodies in bytes.
    pub body_bytes: usize,
    /// The size of the largest body.
    pub longest: usize,
    /// The acknowledged sequence numbers, in order; -1 for an acknowledgement that nothing has arrived.
    pub acked: Vec<i64>,
}

/// The runs among rows of the envelope.
#[derive(Debug)]
pub struct IncomingRuns {
    /// The runs, ordered by first row.
    pub runs: Vec<IncomingRun>,
    /// The run of each row; -1 for none.
    pub of_rows: Int32Array,
}

/// Finds runs. The rows of a sender form a run if all of them are whole messages of one type, between the same services
/// and brokers, with consecutive sequence numbers and matching signatures, and none of them ends the conversation or
/// acknowledges messages out of order.
///
/// # Errors
/// A column is missing or has the wrong type.
pub fn incoming_runs(batches: &[RecordBatch]) -> Result<IncomingRuns> {
    let mut found: Vec<Option<IncomingRun>> = Vec::new();
    let mut positions: HashMap<([u8; 16], bool), usize> = HashMap::new();
    let mut of_rows: Vec<usize> = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
    for batch in batches {
        let columns = EnvelopeColumns::new(batch)?;
        for (row, is_whole) in whole_messages(&columns, batch)?.into_iter().enumerate() {
            let sender = (optional_16(columns.conversation, row).unwrap_or_default(), columns.flags[0].value(row));
            let position = *positions.entry(sender).or_insert(found.len());
            of_rows.push(position);
            match found.get_mut(position) {
                None => found.push(if is_whole { begin(&columns, row) } else { None }),
                Some(run) => {
                    if !(is_whole && run.as_mut().is_some_and(|run| join(run, &columns, row))) {
                        *run = None;
                    }
                }
            }
        }
    }
    let mut numbers = Vec::with_capacity(found.len());
    let mut next = 0;
    for run in &found {
        numbers.push(if run.is_some() { next } else { NONE });
        next += i32::from(run.is_some());
    }
    let of_rows = of_rows.into_iter().map(|position| numbers[position]).collect();
    Ok(IncomingRuns { runs: found.into_iter().flatten().collect(), of_rows })
}

/// Returns which rows are unencrypted whole messages with matching signatures. Only candidate rows are digested.
fn whole_messages(columns: &EnvelopeColumns<'_>, batch: &RecordBatch) -> Result<Vec<bool>> {
    let signatures = EnvelopeColumns::signature(batch)?;
    let rows: Vec<usize> = (0..batch.num_rows()).filter(|&row| is_candidate(columns, row)).collect();
    let bodies: Vec<&[u8]> = rows.iter().map(|&row| columns.body.value(row)).collect();
    let mut digests = vec![[0; 16]; bodies.len()];
    digest_many(&bodies, &mut digests);
    let headers = digests_of(columns, rows.iter().copied());
    let mut are = vec![false; batch.num_rows()];
    for ((row, body), header) in rows.into_iter().zip(digests).zip(headers) {
        let [message, fragment] = columns.signatures.map(|signature| optional_16(signature, row));
        are[row] = message == Some(body)
            && fragment.is_none_or(|fragment| fragment == body)
            && optional_16(signatures, row) == Some(header);
    }
    Ok(are)
}

fn is_candidate(columns: &EnvelopeColumns<'_>, row: usize) -> bool {
    let [_, is_sequenced, is_end, is_error] = columns.flags.map(|flag| is_true(flag, row));
    let known: [&dyn Array; 6] =
        [columns.conversation, columns.flags[0], columns.sequence, columns.fragment, columns.count, columns.body];
    known.iter().all(|column| column.is_valid(row))
        && (is_sequenced && !is_end && !is_error)
        && (columns.fragment.value(row) == 0 && columns.count.value(row) == 1)
        && columns.security.is_valid(row)
        && columns.security.value(row) == UNENCRYPTED
        && match optional_bytes(columns.acked_ahead, row) {
            None => columns.acked.is_null(row),
            Some(ahead) => ahead.is_empty() && (columns.acked.is_null(row) || columns.acked.value(row) >= 0),
        }
        && columns.names.iter().all(|name| name.is_valid(row))
}

fn begin(columns: &EnvelopeColumns<'_>, row: usize) -> Option<IncomingRun> {
    let length = columns.body.value(row).len();
    Some(IncomingRun {
        conversation_id: optional_16(columns.conversation, row)?,
        is_initiator: columns.flags[0].value(row),
        from_broker: optional_16(columns.from_broker, row),
        to_broker: optional_16(columns.to_broker, row),
        names: columns.names.map(|name| name.value(row).to_owned()),
        first: columns.sequence.value(row),
        count: 1,
        body_bytes: length,
        longest: length,
        acked: acked(columns, row).into_iter().collect(),
    })
}

/// Returns what a candidate acknowledges, as in `IncomingRun::acked`; `None` without an acknowledgement.
fn acked(columns: &EnvelopeColumns<'_>, row: usize) -> Option<i64> {
    let nothing = columns.acked_ahead.is_valid(row).then_some(-1);
    if columns.acked.is_valid(row) { Some(columns.acked.value(row)) } else { nothing }
}

fn optional_bytes(column: &BinaryArray, row: usize) -> Option<&[u8]> {
    column.is_valid(row).then(|| column.value(row))
}

/// Appends a row to a run if it is the next message.
fn join(run: &mut IncomingRun, columns: &EnvelopeColumns<'_>, row: usize) -> bool {
    let next = i64::try_from(run.count).ok().and_then(|count| run.first.checked_add(count));
    let is_next = next == Some(columns.sequence.value(row))
        && optional_16(columns.from_broker, row) == run.from_broker
        && optional_16(columns.to_broker, row) == run.to_broker
        && columns.names.iter().zip(&run.names).all(|(name, of_run): (&&StringArray, _)| name.value(row) == of_run);
    if is_next {
        let length = columns.body.value(row).len();
        run.count += 1;
        run.body_bytes += length;
        run.longest = run.longest.max(length);
        run.acked.extend(acked(columns, row));
    }
    is_next
}

fn is_true(flag: &BooleanArray, row: usize) -> bool {
    flag.is_valid(row) && flag.value(row)
}

/// A run of messages waiting to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingRun {
    /// The conversation id.
    pub conversation_id: [u8; 16],
    /// Whether the initiator sends them.
    pub is_initiator: bool,
    /// The sequence number of the first message.
    pub first: i64,
    /// The size of each body in bytes.
    pub lengths: Vec<usize>,
}

/// How to send the messages of a run.
#[derive(Clone, Debug)]
pub struct RunEnvelope {
    /// The number of waiting messages.
    pub message_count: usize,
    /// The number of messages to send, from the start of the run.
    pub send_count: usize,
    /// The sending service, the receiving service and the contract.
    pub names: [String; 3],
    /// The broker id of the sender.
    pub from_broker: [u8; 16],
    /// The broker id of the receiver, if known.
    pub to_broker: Option<[u8; 16]>,
    /// The priority of the conversation.
    pub priority: i8,
    /// When the conversation ends, in microseconds since 1970.
    pub lifetime: Option<i64>,
    /// The acknowledgement to send with the first message: the last acknowledged sequence number, and the messages that
    /// have arrived beyond it.
    pub acknowledgement: Option<(Option<i64>, Vec<u8>)>,
}

/// Returns the runs among waiting messages, in order. `None` if a message has not been read or is an application
/// error, or if a sender has several runs; these messages must be handled one at a time.
///
/// # Errors
/// A column is missing or has the wrong type.
pub fn outgoing_runs(batches: &[RecordBatch]) -> Result<Option<Vec<OutgoingRun>>> {
    let mut runs: Vec<OutgoingRun> = Vec::new();
    for batch in batches {
        let messages = Messages::new(batch)?;
        if messages.bodies.null_count() > 0 || messages.errors.true_count() > 0 {
            return Ok(None);
        }
        for row in 0..batch.num_rows() {
            let sender = (optional_16(messages.conversations, row).unwrap_or_default(), messages.directions.value(row));
            let (number, length) = (messages.numbers.value(row), messages.bodies.value(row).len());
            match runs.last_mut() {
                Some(run) if (run.conversation_id, run.is_initiator) == sender => {
                    let next = i64::try_from(run.lengths.len()).ok().and_then(|count| run.first.checked_add(count));
                    if next != Some(number) {
                        return Ok(None);
                    }
                    run.lengths.push(length);
                }
                _ => runs.push(OutgoingRun {
                    conversation_id: sender.0,
                    is_initiator: sender.1,
                    first: number,
                    lengths: vec![length],
                }),
            }
        }
    }
    let senders: HashSet<_> = runs.iter().map(|run| (run.conversation_id, run.is_initiator)).collect();
    Ok((senders.len() == runs.len()).then_some(runs))
}

/// Builds the envelope rows of waiting messages, with their digests.
///
/// # Errors
/// A column is missing or has the wrong type, or the number of messages differs from that of the runs.
pub fn outgoing_rows(batches: &[RecordBatch], envelopes: &[RunEnvelope]) -> Result<Vec<RecordBatch>> {
    let mut positions = envelopes.iter().enumerate().flat_map(|(run, each)| {
        (0..each.message_count).map(move |position| RunMessage { run, position, is_sent: position < each.send_count })
    });
    let schema = wire_schema();
    let signature = schema.index_of(wire::HEADER_SIGNATURE).map_err(|error| internal(&error))?;
    let schema = Arc::new(schema.project(&(0..=signature).collect::<Vec<_>>()).map_err(|error| internal(&error))?);
    let mut row_batches = Vec::with_capacity(batches.len());
    for batch in batches {
        let messages: Vec<RunMessage> = positions.by_ref().take(batch.num_rows()).collect();
        if messages.len() < batch.num_rows() {
            return Err(wrong_message_count());
        }
        row_batches.push(envelope_rows(&schema, batch, &messages, envelopes)?);
    }
    if positions.next().is_some() { Err(wrong_message_count()) } else { Ok(row_batches) }
}

fn wrong_message_count() -> Error {
    let what = "the number of messages differs from that of the runs".to_owned();
    Error::Malformed { column: fragments::MESSAGE_SEQUENCE_NUMBER.to_owned(), row: None, what }
}

/// A message: its run, its position in the run, and whether it is sent.
#[derive(Clone, Copy)]
struct RunMessage {
    run: usize,
    position: usize,
    is_sent: bool,
}

fn envelope_rows(
    schema: &SchemaRef,
    batch: &RecordBatch,
    run_messages: &[RunMessage],
    envelopes: &[RunEnvelope],
) -> Result<RecordBatch> {
    let sent_messages = sent_messages(batch, run_messages)?;
    let messages = Messages::new(&sent_messages)?;
    let sent: Vec<RunMessage> = run_messages.iter().copied().filter(|each| each.is_sent).collect();
    let count = sent.len();
    let runs = || sent.iter().map(|each| &envelopes[each.run]);
    let name = |position: usize| -> ArrayRef {
        Arc::new(runs().map(|run| Some(run.names[position].as_str())).collect::<StringArray>())
    };
    let is_true: ArrayRef = Arc::new(BooleanArray::from(vec![true; count]));
    let acknowledgements: Vec<_> =
        sent.iter().map(|each| envelopes[each.run].acknowledgement.as_ref().filter(|_| each.position == 0)).collect();
    let lifetimes: TimestampMicrosecondArray = runs().map(|run| run.lifetime).collect();
    let from_broker = binary_16(runs().map(|run| run.from_broker).collect(), None)?;
    let to_nulls = runs().map(|run| run.to_broker.is_some()).collect();
    let to_broker = binary_16(runs().map(|run| run.to_broker.unwrap_or_default()).collect(), Some(to_nulls))?;
    let bodies: Vec<&[u8]> = (0..count).map(|row| messages.bodies.value(row)).collect();
    let mut digests = vec![[0; 16]; count];
    digest_many(&bodies, &mut digests);
    let digests = binary_16(digests, None)?;
    let unchanged = |name: &str| {
        let absent = || Error::Schema { column: name.to_owned(), expected: "a column".to_owned(), actual: None };
        sent_messages.column_by_name(name).cloned().ok_or_else(absent)
    };
    let columns: Vec<ArrayRef> = vec![
        unchanged(fragments::CONVERSATION_ID)?,
        unchanged(fragments::IS_INITIATOR)?,
        unchanged(fragments::MESSAGE_SEQUENCE_NUMBER)?,
        Arc::new(Int32Array::from_iter_values(repeat_n(0, count))),
        Arc::new(Int32Array::from_iter_values(repeat_n(1, count))),
        unchanged(fragments::MESSAGE_BODY)?,
        Arc::clone(&digests),
        digests,
        is_true,
        name(0),
        from_broker,
        name(1),
        to_broker,
        name(2),
        unchanged(wire::MESSAGE_TYPE_NAME)?,
        unchanged(wire::MESSAGE_ID)?,
        Arc::new(Int8Array::from_iter_values(runs().map(|run| run.priority))),
        unchanged(wire::IS_END_OF_DIALOG)?,
        unchanged(wire::IS_CONVERSATION_ERROR)?,
        Arc::new(lifetimes.with_timezone("UTC")),
        Arc::new(Int8Array::from_iter_values(repeat_n(UNENCRYPTED, count))),
        Arc::new(acknowledgements.iter().map(|each| each.and_then(|each| each.0)).collect::<Int64Array>()),
        Arc::new(acknowledgements.iter().map(|each| each.map(|each| each.1.as_slice())).collect::<BinaryArray>()),
    ];
    with_header_signature(schema, columns)
}

/// Selects the messages that are sent.
fn sent_messages(batch: &RecordBatch, run_messages: &[RunMessage]) -> Result<RecordBatch> {
    if run_messages.iter().all(|each| each.is_sent) {
        return Ok(batch.clone());
    }
    let rows: UInt32Array =
        (0..).zip(run_messages).filter(|(_, each)| each.is_sent).map(|(row, _)| Some(row)).collect();
    let columns: std::result::Result<Vec<_>, _> =
        batch.columns().iter().map(|column| take(column, &rows, None)).collect();
    let columns = columns.map_err(|error| internal(&error))?;
    RecordBatch::try_new(batch.schema(), columns).map_err(|error| internal(&error))
}

fn with_header_signature(schema: &SchemaRef, mut columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let unsigned = Arc::new(Schema::new(schema.fields()[..columns.len()].to_vec()));
    let rows = RecordBatch::try_new(unsigned, columns.clone()).map_err(|error| internal(&error))?;
    columns.push(binary_16(digests_of(&EnvelopeColumns::new(&rows)?, 0..rows.num_rows()), None)?);
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| internal(&error))
}

/// The columns of waiting messages that are read.
struct Messages<'a> {
    conversations: &'a FixedSizeBinaryArray,
    directions: &'a BooleanArray,
    numbers: &'a Int64Array,
    errors: &'a BooleanArray,
    bodies: &'a BinaryArray,
}

impl<'a> Messages<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Self> {
        let flag = |name| column(batch, name, "bool", |array| array.as_boolean_opt());
        Ok(Self {
            conversations: fixed_16(batch, fragments::CONVERSATION_ID)?,
            directions: flag(fragments::IS_INITIATOR)?,
            numbers: column(batch, fragments::MESSAGE_SEQUENCE_NUMBER, "int64", |array| {
                array.as_primitive_opt::<Int64Type>()
            })?,
            errors: flag(wire::IS_CONVERSATION_ERROR)?,
            bodies: column(batch, fragments::MESSAGE_BODY, "binary", |array| array.as_binary_opt::<i32>())?,
        })
    }
}
