//! Bodies of frames from somebody else: any bytes, any metadata with any buffers, and good batches with some bytes changed. Never a panic,
//! never more memory than was received, and what is taken is valid to its last bit.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::{Result, Unstructured};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::{Buffer, MutableBuffer};
use libfuzzer_sys::fuzz_target;
use ssbroker_columnar::{crc32c, decode_fragments};
use ssbroker_fuzz::sample;

/// How many bodies were decoded, and after how many more that is told.
static BODIES: AtomicU64 = AtomicU64::new(0);
const TOLD_EVERY: u64 = 100_000;

/// As the doorway does it: at an address that suits all columns.
fn aligned(body: &[u8]) -> Buffer {
    let mut aligned = MutableBuffer::with_capacity(body.len());
    aligned.extend_from_slice(body);
    aligned.into()
}

fn take(body: &[u8]) -> Option<RecordBatch> {
    let bodies = BODIES.fetch_add(1, Ordering::Relaxed) + 1;
    if bodies.is_multiple_of(TOLD_EVERY) {
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
    // The bits of validity and the last offset may be shared by nobody, and are counted in whole bytes.
    assert!(bytes <= body.len() + rows.num_columns() * 8, "{bytes} of {}", body.len());
    Some(rows)
}

/// One good batch, and eight that are nearly that: so that most of the time goes into decoding.
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
        assert!(taken == rows || crc32c(&body, 0) != whole, "four bytes that a checksum does not see");
        if from.ratio(1, 4)? {
            let again = decode_fragments(&aligned(&sample::body(&taken))).expect("what was taken can be sent on");
            assert_eq!(again, taken);
        }
    }
    Ok(())
}

/// A marker and a true length before any bytes, so that they get as far as the metadata.
fn headed(bytes: &[u8]) {
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
        1 => headed(bytes),
        _ => drop(changed(&mut Unstructured::new(bytes))),
    }
});
