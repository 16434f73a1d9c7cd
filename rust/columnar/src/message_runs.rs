//! Whole messages of plain conversations among rows from the network, in runs: what of each row may be compared without knowing the
//! conversation is compared here, so that no row has to be looked at by itself.

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

use crate::arrays::sixteens;
use crate::envelope::{Columns, PLAIN, column, digests_of, sixteen};
use crate::error::{Error, Result, internal};
use crate::schema::{fragments, wire, wire_schema};

/// The group of a row that is in no run.
const NONE: i32 = -1;

/// What the rows of a run have in common, and which they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The conversation.
    pub conversation_id: [u8; 16],
    /// Whether its initiator sent them.
    pub is_initiator: bool,
    /// The broker that sent them.
    pub from_broker: Option<[u8; 16]>,
    /// The broker that they are for.
    pub to_broker: Option<[u8; 16]>,
    /// The service that sent them, the one that they are for, their contract and their type.
    pub names: [String; 4],
    /// The number of the first message; each has the number behind that of the one before.
    pub first: i64,
    /// How many messages.
    pub count: usize,
    /// How many bytes their bodies have.
    pub body_bytes: usize,
    /// And how many the longest.
    pub longest: usize,
}

/// The runs among rows of the envelope.
#[derive(Debug)]
pub struct Runs {
    /// The runs, in the order of their first rows.
    pub runs: Vec<Run>,
    /// Of which run each row is; -1 for none.
    pub of_rows: Int32Array,
}

/// Finds runs: all that a side of a conversation has sent is whole messages, one behind the other, that end nothing and acknowledge nothing,
/// whose signatures are the digests of what they say and hold, and that are of one type, and between the same services and brokers.
///
/// # Errors
/// A column is not there, or of another type.
pub fn plain_runs(batches: &[RecordBatch]) -> Result<Runs> {
    let mut found: Vec<Option<Run>> = Vec::new();
    let mut places: HashMap<([u8; 16], bool), usize> = HashMap::new();
    let mut of_rows: Vec<usize> = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
    for batch in batches {
        let columns = Columns::new(batch)?;
        for (row, is_plain) in are_plain(&columns, batch)?.into_iter().enumerate() {
            let sender = (sixteen(columns.conversation, row).unwrap_or_default(), columns.flags[0].value(row));
            let place = *places.entry(sender).or_insert(found.len());
            of_rows.push(place);
            match found.get_mut(place) {
                None => found.push(if is_plain { begin(&columns, row) } else { None }),
                Some(run) => {
                    if !(is_plain && run.as_mut().is_some_and(|run| join(run, &columns, row))) {
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
    let of_rows = of_rows.into_iter().map(|place| numbers[place]).collect();
    Ok(Runs { runs: found.into_iter().flatten().collect(), of_rows })
}

/// Which rows are whole messages in plain conversations, and no more than that. Digests are made of those alone that look so.
fn are_plain(columns: &Columns<'_>, batch: &RecordBatch) -> Result<Vec<bool>> {
    let signatures = Columns::signature(batch)?;
    let rows: Vec<usize> = (0..batch.num_rows()).filter(|&row| looks_plain(columns, row)).collect();
    let bodies: Vec<&[u8]> = rows.iter().map(|&row| columns.body.value(row)).collect();
    let mut digests = vec![[0; 16]; bodies.len()];
    digest_many(&bodies, &mut digests);
    let headers = digests_of(columns, rows.iter().copied());
    let mut are = vec![false; batch.num_rows()];
    for ((row, body), header) in rows.into_iter().zip(digests).zip(headers) {
        let [message, fragment] = columns.signatures.map(|signature| sixteen(signature, row));
        are[row] = message == Some(body)
            && fragment.is_none_or(|fragment| fragment == body)
            && sixteen(signatures, row) == Some(header);
    }
    Ok(are)
}

fn looks_plain(columns: &Columns<'_>, row: usize) -> bool {
    let [_, is_sequenced, is_end, is_error] = columns.flags.map(|flag| yes(flag, row));
    let known: [&dyn Array; 6] =
        [columns.conversation, columns.flags[0], columns.sequence, columns.fragment, columns.count, columns.body];
    known.iter().all(|column| column.is_valid(row))
        && (is_sequenced && !is_end && !is_error)
        && (columns.fragment.value(row) == 0 && columns.count.value(row) == 1)
        && columns.security.is_valid(row)
        && columns.security.value(row) == PLAIN
        && columns.acked.is_null(row)
        && columns.ahead.is_null(row)
        && columns.names.iter().all(|name| name.is_valid(row))
}

fn begin(columns: &Columns<'_>, row: usize) -> Option<Run> {
    let length = columns.body.value(row).len();
    Some(Run {
        conversation_id: sixteen(columns.conversation, row)?,
        is_initiator: columns.flags[0].value(row),
        from_broker: sixteen(columns.from_broker, row),
        to_broker: sixteen(columns.to_broker, row),
        names: columns.names.map(|name| name.value(row).to_owned()),
        first: columns.sequence.value(row),
        count: 1,
        body_bytes: length,
        longest: length,
    })
}

/// Adds a row to a run, if it is the next one.
fn join(run: &mut Run, columns: &Columns<'_>, row: usize) -> bool {
    let next = i64::try_from(run.count).ok().and_then(|count| run.first.checked_add(count));
    let is_next = next == Some(columns.sequence.value(row))
        && sixteen(columns.from_broker, row) == run.from_broker
        && sixteen(columns.to_broker, row) == run.to_broker
        && columns.names.iter().zip(&run.names).all(|(name, of_run): (&&StringArray, _)| name.value(row) == of_run);
    if is_next {
        let length = columns.body.value(row).len();
        run.count += 1;
        run.body_bytes += length;
        run.longest = run.longest.max(length);
    }
    is_next
}

fn yes(flag: &BooleanArray, row: usize) -> bool {
    flag.is_valid(row) && flag.value(row)
}

// Whole messages of plain conversations that wait, as the rows in which they go to another instance: a run of each sender at a time, so that no
// message has to be looked at by itself.

/// Messages of one sender that wait, each with the number behind that of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRun {
    /// The conversation.
    pub conversation_id: [u8; 16],
    /// Whether its initiator sends them.
    pub is_initiator: bool,
    /// The number of the first message.
    pub first: i64,
    /// How many bytes the body of each has.
    pub lengths: Vec<usize>,
}

/// How the messages of a run go.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// How many messages wait.
    pub waiting: usize,
    /// How many of them go, the first ones.
    pub going: usize,
    /// The service that sends them, the one that they are for, and their contract.
    pub names: [String; 3],
    /// The broker that sends them.
    pub from_broker: [u8; 16],
    /// The broker that they are for, where it is known.
    pub to_broker: Option<[u8; 16]>,
    /// The priority of the conversation.
    pub priority: i8,
    /// The moment at which the conversation ends, in microseconds since 1970.
    pub lifetime: Option<i64>,
    /// The acknowledgement that the first of them carries: up to which number, and what beyond.
    pub acknowledgement: Option<(Option<i64>, Vec<u8>)>,
}

/// The runs among messages that wait, in their order. Nothing where one of them was not read or is an error of its application, or where a
/// sender has more than one run: then each is to be looked at by itself.
///
/// # Errors
/// A column is not there, or of another type.
pub fn waiting_runs(batches: &[RecordBatch]) -> Result<Option<Vec<WaitingRun>>> {
    let mut runs: Vec<WaitingRun> = Vec::new();
    for batch in batches {
        let messages = Messages::new(batch)?;
        if messages.bodies.null_count() > 0 || messages.errors.true_count() > 0 {
            return Ok(None);
        }
        for row in 0..batch.num_rows() {
            let sender = (sixteen(messages.conversations, row).unwrap_or_default(), messages.sides.value(row));
            let (number, length) = (messages.numbers.value(row), messages.bodies.value(row).len());
            match runs.last_mut() {
                Some(run) if (run.conversation_id, run.is_initiator) == sender => {
                    let next = i64::try_from(run.lengths.len()).ok().and_then(|count| run.first.checked_add(count));
                    if next != Some(number) {
                        return Ok(None);
                    }
                    run.lengths.push(length);
                }
                _ => runs.push(WaitingRun {
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

/// The rows in which the messages of `waiting_runs` go, with their digests.
///
/// # Errors
/// A column is not there, or of another type, or there are not as many messages as the runs have.
pub fn departures(batches: &[RecordBatch], leaving: &[Leaving]) -> Result<Vec<RecordBatch>> {
    let mut places = leaving
        .iter()
        .enumerate()
        .flat_map(|(run, each)| (0..each.waiting).map(move |place| Going { run, place, goes: place < each.going }));
    let schema = wire_schema();
    let signature = schema.index_of(wire::HEADER_SIGNATURE).map_err(|error| internal(&error))?;
    let schema = Arc::new(schema.project(&(0..=signature).collect::<Vec<_>>()).map_err(|error| internal(&error))?);
    let mut made = Vec::with_capacity(batches.len());
    for batch in batches {
        let going: Vec<Going> = places.by_ref().take(batch.num_rows()).collect();
        if going.len() < batch.num_rows() {
            return Err(not_as_many());
        }
        made.push(rows(&schema, batch, &going, leaving)?);
    }
    if places.next().is_some() { Err(not_as_many()) } else { Ok(made) }
}

fn not_as_many() -> Error {
    let what = "there are not as many messages as the runs have".to_owned();
    Error::Malformed { column: fragments::MESSAGE_SEQUENCE_NUMBER.to_owned(), row: None, what }
}

/// One message: of which run, its place there, and whether it goes.
#[derive(Clone, Copy)]
struct Going {
    run: usize,
    place: usize,
    goes: bool,
}

fn rows(schema: &SchemaRef, batch: &RecordBatch, going: &[Going], leaving: &[Leaving]) -> Result<RecordBatch> {
    let kept = kept(batch, going)?;
    let messages = Messages::new(&kept)?;
    let going: Vec<Going> = going.iter().copied().filter(|each| each.goes).collect();
    let count = going.len();
    let runs = || going.iter().map(|each| &leaving[each.run]);
    let name = |place: usize| -> ArrayRef {
        Arc::new(runs().map(|run| Some(run.names[place].as_str())).collect::<StringArray>())
    };
    let yes: ArrayRef = Arc::new(BooleanArray::from(vec![true; count]));
    let carried: Vec<_> =
        going.iter().map(|each| leaving[each.run].acknowledgement.as_ref().filter(|_| each.place == 0)).collect();
    let lifetimes: TimestampMicrosecondArray = runs().map(|run| run.lifetime).collect();
    let from_broker = sixteens(runs().map(|run| run.from_broker).collect(), None)?;
    let to_nulls = runs().map(|run| run.to_broker.is_some()).collect();
    let to_broker = sixteens(runs().map(|run| run.to_broker.unwrap_or_default()).collect(), Some(to_nulls))?;
    let bodies: Vec<&[u8]> = (0..count).map(|row| messages.bodies.value(row)).collect();
    let mut digests = vec![[0; 16]; count];
    digest_many(&bodies, &mut digests);
    let digests = sixteens(digests, None)?;
    let same = |name: &str| {
        let absent = || Error::Schema { column: name.to_owned(), expected: "a column".to_owned(), actual: None };
        kept.column_by_name(name).cloned().ok_or_else(absent)
    };
    let columns: Vec<ArrayRef> = vec![
        same(fragments::CONVERSATION_ID)?,
        same(fragments::IS_INITIATOR)?,
        same(fragments::MESSAGE_SEQUENCE_NUMBER)?,
        Arc::new(Int32Array::from_iter_values(repeat_n(0, count))),
        Arc::new(Int32Array::from_iter_values(repeat_n(1, count))),
        same(fragments::MESSAGE_BODY)?,
        Arc::clone(&digests),
        digests,
        yes,
        name(0),
        from_broker,
        name(1),
        to_broker,
        name(2),
        same(wire::MESSAGE_TYPE_NAME)?,
        same(wire::MESSAGE_ID)?,
        Arc::new(Int8Array::from_iter_values(runs().map(|run| run.priority))),
        same(wire::IS_END_OF_DIALOG)?,
        same(wire::IS_CONVERSATION_ERROR)?,
        Arc::new(lifetimes.with_timezone("UTC")),
        Arc::new(Int8Array::from_iter_values(repeat_n(PLAIN, count))),
        Arc::new(carried.iter().map(|each| each.and_then(|each| each.0)).collect::<Int64Array>()),
        Arc::new(carried.iter().map(|each| each.map(|each| each.1.as_slice())).collect::<BinaryArray>()),
    ];
    signed(schema, columns)
}

/// The messages that go: all columns as they are, where all do.
fn kept(batch: &RecordBatch, going: &[Going]) -> Result<RecordBatch> {
    if going.iter().all(|each| each.goes) {
        return Ok(batch.clone());
    }
    let rows: UInt32Array = (0..).zip(going).filter(|(_, each)| each.goes).map(|(row, _)| Some(row)).collect();
    let columns: std::result::Result<Vec<_>, _> =
        batch.columns().iter().map(|column| take(column, &rows, None)).collect();
    let columns = columns.map_err(|error| internal(&error))?;
    RecordBatch::try_new(batch.schema(), columns).map_err(|error| internal(&error))
}

fn signed(schema: &SchemaRef, mut columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let unsigned = Arc::new(Schema::new(schema.fields()[..columns.len()].to_vec()));
    let rows = RecordBatch::try_new(unsigned, columns.clone()).map_err(|error| internal(&error))?;
    columns.push(sixteens(digests_of(&Columns::new(&rows)?, 0..rows.num_rows()), None)?);
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| internal(&error))
}

/// What is looked at of messages that wait.
struct Messages<'a> {
    conversations: &'a FixedSizeBinaryArray,
    sides: &'a BooleanArray,
    numbers: &'a Int64Array,
    errors: &'a BooleanArray,
    bodies: &'a BinaryArray,
}

impl<'a> Messages<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Self> {
        let flag = |name| column(batch, name, "bool", |array| array.as_boolean_opt());
        Ok(Self {
            conversations: column(batch, fragments::CONVERSATION_ID, "binary(16)", |array| {
                array.as_fixed_size_binary_opt()
            })?,
            sides: flag(fragments::IS_INITIATOR)?,
            numbers: column(batch, fragments::MESSAGE_SEQUENCE_NUMBER, "int64", |array| {
                array.as_primitive_opt::<Int64Type>()
            })?,
            errors: flag(wire::IS_CONVERSATION_ERROR)?,
            bodies: column(batch, fragments::MESSAGE_BODY, "binary", |array| array.as_binary_opt::<i32>())?,
        })
    }
}
