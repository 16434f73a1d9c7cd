//! A reassembly as bytes (M23).
//!
//! What the assembler says of itself, then the further columns of the pending messages as an Arrow stream, because the form in which
//! they are kept is that of one version of one crate; at the end the MD5 of the rest, which finds every accident.

use std::fmt::Display;
use std::panic::catch_unwind;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Schema};
use ssbroker_core::Seed;
use ssbroker_core::reassembly::Assembler;

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, cut};
use crate::error::{Error, Result, internal};
use crate::extra_columns::ExtraSchema;
use crate::reassemble::ReassemblyKernel;

const NAME: &[u8; 8] = b"ssb:asm\0";
const VERSION: u16 = 1;
const OTHER_COUNT: &str = "it has extra columns of another number of messages";

/// Further columns of each message, as the assembler keeps them.
type Kept = Vec<Box<[u8]>>;

impl ReassemblyKernel {
    /// All that is remembered.
    ///
    /// # Errors
    /// A further column that cannot be written.
    pub fn checkpoint(&self) -> Result<Vec<u8>> {
        let (state, kept) = self.assembler.checkpoint();
        let extra = self.shape.as_ref().map(|shape| write(shape, &kept)).transpose();
        let extra = extra.map_err(|error| internal(&error))?.unwrap_or_default();
        let mut out = Vec::with_capacity(state.len() + extra.len() + 64);
        out.extend_from_slice(NAME);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(kept.len() as u64).to_le_bytes());
        out.extend_from_slice(&(state.len() as u64).to_le_bytes());
        out.extend_from_slice(&state);
        out.extend_from_slice(&extra);
        let digest = ssbroker_md5::digest(&out);
        out.extend_from_slice(&digest);
        Ok(out)
    }

    /// A kernel that goes on where another was.
    ///
    /// # Errors
    /// The bytes are cut off, altered, of another version or contradict themselves.
    pub fn restore(bytes: &[u8], seed: Seed) -> Result<Self> {
        let (state, count, extra) = open(bytes).map_err(bad)?;
        let (shape, kept) = if extra.is_empty() {
            (None, vec![Box::default(); count])
        } else {
            // The reader of Arrow streams panics where one contradicts itself, as no accident with a right digest does.
            let read =
                catch_unwind(|| read(extra, count)).unwrap_or_else(|_| Err("its Arrow stream is none".to_owned()));
            read.map(|(shape, kept)| (Some(Arc::new(shape)), kept)).map_err(bad)?
        };
        let assembler = Assembler::restore(state, kept, seed).map_err(bad)?;
        Ok(Self { assembler, shape })
    }
}

fn bad(what: impl Display) -> Error {
    Error::State(format!("{what}"))
}

/// The assembler's state, the number of pending messages with further columns, and those.
fn open(bytes: &[u8]) -> std::result::Result<(&[u8], usize, &[u8]), &'static str> {
    const CUT_OFF: &str = "it is cut off";
    let rest = bytes.strip_prefix(NAME).ok_or("it does not begin as one")?;
    let (version, _) = rest.split_first_chunk().ok_or(CUT_OFF)?;
    if *version != VERSION.to_le_bytes() {
        return Err("it is of another version");
    }
    let (told, digest) = bytes.split_last_chunk().ok_or(CUT_OFF)?;
    if !ssbroker_md5::equal(&ssbroker_md5::digest(told), digest) {
        return Err("it is cut off or altered");
    }
    let rest = told.get(NAME.len() + size_of_val(&VERSION)..).ok_or(CUT_OFF)?;
    let (count, rest) = rest.split_first_chunk().ok_or(CUT_OFF)?;
    let (len, rest) = rest.split_first_chunk().ok_or(CUT_OFF)?;
    let (count, len) = (u64::from_le_bytes(*count), u64::from_le_bytes(*len));
    let len = usize::try_from(len).map_err(|_| CUT_OFF)?;
    let (state, extra) = rest.split_at_checked(len).ok_or(CUT_OFF)?;
    // Each has a message in the state, which takes more bytes than one; so room may be made for them.
    let count = usize::try_from(count).ok().filter(|count| *count <= state.len()).ok_or(CUT_OFF)?;
    Ok((state, count, extra))
}

fn write(shape: &ExtraSchema, kept: &[&[u8]]) -> std::result::Result<Vec<u8>, ArrowError> {
    let schema = Arc::new(Schema::new(shape.fields.clone()));
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    if !shape.fields.is_empty() && !kept.is_empty() {
        for range in cut(kept.iter().map(|row| row.len()), BATCH_BYTES, BATCH_ROWS) {
            let rows = RecordBatchOptions::new().with_row_count(Some(range.len()));
            let columns = shape.read(kept[range].iter().copied())?;
            writer.write(&RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &rows)?)?;
        }
    }
    writer.into_inner()
}

fn read(bytes: &[u8], count: usize) -> std::result::Result<(ExtraSchema, Kept), String> {
    let arrow = |error: ArrowError| error.to_string();
    let mut reader = StreamReader::try_new(bytes, None).map_err(arrow)?;
    let shape = ExtraSchema::new(reader.schema().fields().to_vec()).map_err(|error| error.to_string())?;
    let mut kept = Vec::new();
    for batch in reader.by_ref() {
        let batch = batch.map_err(arrow)?;
        if batch.num_rows() > count - kept.len() {
            return Err(OTHER_COUNT.to_owned());
        }
        kept.extend(shape.keep(batch.columns()).map_err(arrow)?);
    }
    if shape.fields.is_empty() {
        kept.resize(count, Box::default());
    }
    if kept.len() == count { Ok((shape, kept)) } else { Err(OTHER_COUNT.to_owned()) }
}
