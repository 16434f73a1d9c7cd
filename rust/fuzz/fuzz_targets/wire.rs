//! Decodes frame bodies: arbitrary bytes, arbitrary metadata with arbitrary buffers, and valid batches with changed
//! bytes. Must never panic or use more memory than was received, and accepted batches must be fully valid.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::{Result, Unstructured};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::{Buffer, MutableBuffer};
use libfuzzer_sys::fuzz_target;
use ssbroker_columnar::{crc32c, decode_fragments};
use ssbroker_fuzz::sample;

/// The number of decoded bodies, and how often it is reported.
static BODIES: AtomicU64 = AtomicU64::new(0);
const REPORT_EVERY: u64 = 100_000;

/// Copies the body to an aligned address, as the binding does.
fn aligned(body: &[u8]) -> Buffer {
    let mut aligned = MutableBuffer::with_capacity(body.len());
    aligned.extend_from_slice(body);
    aligned.into()
}

fn take(body: &[u8]) -> Option<RecordBatch> {
    let bodies = BODIES.fetch_add(1, Ordering::Relaxed) + 1;
    if bodies.is_multiple_of(REPORT_EVERY) {
        eprintln!("bodies: {bodies}");
    }
    let rows = decode_fragments(&aligned(body)).ok()?;
    assert!((1..=1_024).contains(&rows.num_rows()));
    let mut bytes = 0;
    for column in rows.columns() {
        let data = column.to_data();
        data.validate_full().expect("valid columns");
        bytes += data.get_slice_memory_size().expect("a size");
    }
    // Validity bits and the last offset may be counted in whole bytes.
    assert!(bytes <= body.len() + rows.num_columns() * 8, "{bytes} of {}", body.len());
    Some(rows)
}

/// Decodes one valid batch and eight slightly changed ones, to spend most of the time in decoding.
fn changed(from: &mut Unstructured<'_>) -> Result<()> {
    let rows = sample::rows(from)?;
    let good = sample::body(&rows);
    assert_eq!(take(&good).as_ref(), Some(&rows));
    let whole = crc32c(&good, 0);
    for _ in 0..8 {
        let mut body = good.clone();
        for _ in 0..from.int_in_range(1..=4)? {
            let at = from.int_in_range(0..=body.len() - 1)?;
            body[at] = from.arbitrary()?;
        }
        if from.ratio(1, 8)? {
            body.truncate(from.int_in_range(0..=body.len())?);
        }
        let Some(taken) = take(&body) else { continue };
        assert!(taken == rows || crc32c(&body, 0) != whole, "a change that the checksum misses");
        if from.ratio(1, 4)? {
            let again = decode_fragments(&aligned(&sample::body(&taken))).expect("accepted rows can be encoded");
            assert_eq!(again, taken);
        }
    }
    Ok(())
}

/// Adds a marker and a correct length to arbitrary bytes, so that they reach the metadata parser.
fn with_header(bytes: &[u8]) {
    let len = bytes.len() / 8 * 8;
    let mut body = [0xFF; 4].to_vec();
    body.extend_from_slice(&(len as u32).to_le_bytes());
    body.extend_from_slice(bytes);
    take(&body);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind & 3 {
        0 => drop(take(bytes)),
        1 => with_header(bytes),
        _ => drop(changed(&mut Unstructured::new(bytes))),
    }
});
