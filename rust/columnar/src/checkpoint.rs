//! Checkpoints of a reassembly: the state of the assembler, the extra columns of the pending messages as an Arrow
//! stream, and an MD5 of all that, which detects accidental changes.
//!
//! Extra columns are written as Arrow because their format in memory is specific to a version of the arrow-row
//! crate.

use std::borrow::Cow;
use std::fmt::Display;
use std::panic::catch_unwind;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Schema};
use ssbroker_core::Seed;
use ssbroker_core::reassembly::Assembler;

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, split_rows};
use crate::error::{Error, Result, internal};
use crate::extra_columns::ExtraSchema;
use crate::reassemble::ReassemblyKernel;

const NAME: &[u8; 8] = b"ssb:asm\0";
const VERSION: u16 = 1;
const WRONG_COUNT: &str = "wrong number of extra columns";

/// The extra columns of each message, as stored by the assembler.
type StoredRows = Vec<Box<[u8]>>;

impl ReassemblyKernel {
    /// Writes a checkpoint.
    ///
    /// # Errors
    /// An extra column cannot be written, or the result of a push could not be built.
    pub fn checkpoint(&self) -> Result<Vec<u8>> {
        self.check_usable()?;
        let (state, stored) = self.assembler.checkpoint();
        let extra =
            self.extra_schema.as_ref().map(|extra_schema| write_extra_columns(extra_schema, &stored)).transpose();
        let extra = extra.map_err(|error| internal(&error))?.unwrap_or_default();
        let mut out = Vec::with_capacity(state.len() + extra.len() + 64);
        out.extend_from_slice(NAME);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(stored.len() as u64).to_le_bytes());
        out.extend_from_slice(&(state.len() as u64).to_le_bytes());
        out.extend_from_slice(&state);
        out.extend_from_slice(&extra);
        let digest = ssbroker_md5::digest(&out);
        out.extend_from_slice(&digest);
        Ok(out)
    }

    /// Restores a kernel from a checkpoint.
    ///
    /// # Errors
    /// The bytes are truncated, altered, inconsistent or of another version.
    pub fn restore(bytes: &[u8], seed: Seed) -> Result<Self> {
        let (state, count, extra) = split_checkpoint(bytes).map_err(invalid)?;
        let (extra_schema, stored) = if extra.is_empty() {
            (None, vec![Box::default(); count])
        } else {
            // The Arrow stream reader panics on contradictory streams, which only a deliberate change with a
            // matching digest can cause.
            let read = catch_unwind(|| read_extra_columns(extra, count))
                .unwrap_or_else(|_| Err("invalid Arrow stream".to_owned()));
            read.map(|(extra_schema, stored)| (Some(Arc::new(extra_schema)), stored)).map_err(invalid)?
        };
        let assembler = Assembler::restore(state, stored, seed).map_err(invalid)?;
        Ok(Self { assembler, extra_schema, has_failed: false })
    }
}

fn invalid(what: impl Display) -> Error {
    Error::State(format!("{what}"))
}

/// The assembler's state, the number of messages with extra columns, and the extra columns.
type Parts<'a> = (&'a [u8], usize, &'a [u8]);

/// Splits a checkpoint.
fn split_checkpoint(bytes: &[u8]) -> std::result::Result<Parts<'_>, Cow<'static, str>> {
    const TRUNCATED: &str = "truncated";
    let rest = bytes
        .strip_prefix(NAME)
        .ok_or("unknown format; expected what checkpoint() returned, or a file that --state wrote")?;
    let (version, _) = rest.split_first_chunk().ok_or(TRUNCATED)?;
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(format!("unsupported version {version}; this version of ssbroker reads version {VERSION}").into());
    }
    let (content, digest) = bytes.split_last_chunk().ok_or(TRUNCATED)?;
    if !ssbroker_md5::equal(&ssbroker_md5::digest(content), digest) {
        return Err("truncated or altered".into());
    }
    let rest = content.get(NAME.len() + size_of_val(&VERSION)..).ok_or(TRUNCATED)?;
    let (count, rest) = rest.split_first_chunk().ok_or(TRUNCATED)?;
    let (len, rest) = rest.split_first_chunk().ok_or(TRUNCATED)?;
    let (count, len) = (u64::from_le_bytes(*count), u64::from_le_bytes(*len));
    let len = usize::try_from(len).map_err(|_| TRUNCATED)?;
    let (state, extra) = rest.split_at_checked(len).ok_or(TRUNCATED)?;
    // Each of these messages takes more than one byte of the state, so this bounds the allocation.
    let count = usize::try_from(count).ok().filter(|count| *count <= state.len()).ok_or(TRUNCATED)?;
    Ok((state, count, extra))
}

fn write_extra_columns(extra_schema: &ExtraSchema, stored: &[&[u8]]) -> std::result::Result<Vec<u8>, ArrowError> {
    let schema = Arc::new(Schema::new(extra_schema.fields.clone()));
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    if !extra_schema.fields.is_empty() && !stored.is_empty() {
        for range in split_rows(stored.iter().map(|row| row.len()), BATCH_BYTES, BATCH_ROWS) {
            let rows = RecordBatchOptions::new().with_row_count(Some(range.len()));
            let columns = extra_schema.columns_from_rows(stored[range].iter().copied())?;
            writer.write(&RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &rows)?)?;
        }
    }
    writer.into_inner()
}

fn read_extra_columns(bytes: &[u8], count: usize) -> std::result::Result<(ExtraSchema, StoredRows), String> {
    let arrow = |error: ArrowError| error.to_string();
    let mut reader = StreamReader::try_new(bytes, None).map_err(arrow)?;
    let extra_schema = ExtraSchema::new(reader.schema().fields().to_vec()).map_err(|error| error.to_string())?;
    let mut stored = Vec::new();
    for batch in reader.by_ref() {
        let batch = batch.map_err(arrow)?;
        if batch.num_rows() > count - stored.len() {
            return Err(WRONG_COUNT.to_owned());
        }
        stored.extend(extra_schema.to_rows(batch.columns()).map_err(arrow)?);
    }
    if extra_schema.fields.is_empty() {
        stored.resize(count, Box::default());
    }
    if stored.len() == count { Ok((extra_schema, stored)) } else { Err(WRONG_COUNT.to_owned()) }
}
