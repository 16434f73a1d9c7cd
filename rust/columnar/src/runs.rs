//! Whole messages of plain conversations among rows from the network, in runs: what of each row may be compared without knowing the
//! conversation is compared here, so that no row has to be looked at by itself.

use std::collections::HashMap;

use arrow_array::{Array, BooleanArray, FixedSizeBinaryArray, Int32Array, RecordBatch, StringArray};
use ssbroker_md5::digest_many;

use crate::error::Result;
use crate::headers::{Columns, digests_of};

/// What `security` says of a fragment that only has digests.
pub(crate) const PLAIN: i8 = 0;
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

/// The value of a GUID or a digest.
pub(crate) fn sixteen(column: &FixedSizeBinaryArray, row: usize) -> Option<[u8; 16]> {
    if column.is_null(row) { None } else { column.value(row).try_into().ok() }
}
