//! Reads byte strings in any Arrow layout without copying.
//!
//! Offsets, views and dictionary keys are not trusted: every access is checked, and an invalid one is an error for
//! its row. Whether text is valid UTF-8 does not matter here, because names compare byte by byte (R5).

use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryViewType, Int8Type, Int16Type, Int32Type, Int64Type, StringViewType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowNativeTypeOp};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, ToByteSlice};
use arrow_schema::DataType;
use ssbroker_core::prefetch_bytes;

use crate::masks::{bits, ones, set_bits};

/// A column of byte strings.
#[derive(Debug)]
pub(crate) struct BytesView<'a> {
    layout: Layout<'a>,
    nulls: Option<&'a NullBuffer>,
    pub(crate) is_text: bool,
    len: usize,
}

#[derive(Debug)]
enum Layout<'a> {
    Offsets32(&'a [i32], &'a [u8]),
    Offsets64(&'a [i64], &'a [u8]),
    Views(&'a [u128], &'a [Buffer]),
    Fixed(usize, &'a [u8]),
    Dictionary(DictionaryKeys<'a>, Box<BytesView<'a>>),
    AllNull,
}

impl<'a> BytesView<'a> {
    /// Creates a view of `array`; `None` if it does not contain byte strings.
    pub(crate) fn new(array: &'a dyn Array) -> Option<Self> {
        let is_text = is_text(array.data_type());
        let (len, nulls) = (array.len(), array.nulls());
        let layout = match array.data_type() {
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                Layout::Offsets32(array.value_offsets(), array.value_data())
            }
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                Layout::Offsets32(array.value_offsets(), array.value_data())
            }
            DataType::LargeUtf8 => {
                let array = array.as_string::<i64>();
                Layout::Offsets64(array.value_offsets(), array.value_data())
            }
            DataType::LargeBinary => {
                let array = array.as_binary::<i64>();
                Layout::Offsets64(array.value_offsets(), array.value_data())
            }
            DataType::Utf8View => {
                let array = array.as_byte_view::<StringViewType>();
                Layout::Views(array.views(), array.data_buffers())
            }
            DataType::BinaryView => {
                let array = array.as_byte_view::<BinaryViewType>();
                Layout::Views(array.views(), array.data_buffers())
            }
            DataType::FixedSizeBinary(size) => {
                Layout::Fixed(usize::try_from(*size).ok()?, array.as_fixed_size_binary().value_data())
            }
            DataType::Dictionary(key, _) => dictionary(array, key)?,
            DataType::Null => Layout::AllNull,
            _ => return None,
        };
        Some(Self { layout, nulls, is_text, len })
    }

    /// Whether all rows are null because of the type.
    pub(crate) fn is_always_null(&self) -> bool {
        match &self.layout {
            Layout::AllNull => true,
            Layout::Dictionary(_, values) => values.is_always_null(),
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn is_null(&self, row: usize) -> bool {
        match &self.layout {
            Layout::AllNull => true,
            _ if self.nulls.is_some_and(|nulls| nulls.is_null(row)) => true,
            Layout::Dictionary(keys, values) => {
                keys.get(row).is_some_and(|key| key < values.len && values.is_null(key))
            }
            _ => false,
        }
    }

    /// Returns the bytes of a row that is not null.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Result<&'a [u8], OutOfBounds> {
        match &self.layout {
            Layout::Offsets32(offsets, data) => read_value(offsets, data, row),
            Layout::Offsets64(offsets, data) => read_value(offsets, data, row),
            Layout::Views(views, buffers) => view(views, buffers, row),
            Layout::Fixed(size, data) => data.get(row * size..(row + 1) * size).ok_or(OutOfBounds),
            Layout::Dictionary(keys, values) => values.value_of_key(keys.get(row).ok_or(OutOfBounds)?),
            Layout::AllNull => Err(OutOfBounds),
        }
    }

    /// Returns the value of a dictionary key, which may be out of bounds.
    #[inline]
    fn value_of_key(&self, key: usize) -> Result<&'a [u8], OutOfBounds> {
        if key < self.len { self.get(key) } else { Err(OutOfBounds) }
    }

    /// Reads consecutive rows from `start` into `into`; null rows are undefined.
    ///
    /// # Errors
    /// The first row that is neither readable nor null.
    pub(crate) fn get_block(&self, start: usize, into: &mut [&'a [u8]]) -> Result<(), usize> {
        let all_read = match &self.layout {
            Layout::Offsets32(offsets, data) => read_values(offsets, data, start, into),
            Layout::Offsets64(offsets, data) => read_values(offsets, data, start, into),
            Layout::Dictionary(keys, values) => keys.read_values(values, start, into),
            _ => false,
        };
        if all_read {
            return Ok(());
        }
        for (position, value) in into.iter_mut().enumerate() {
            *value = match self.get(start + position) {
                Ok(bytes) => bytes,
                Err(OutOfBounds) if self.is_null(start + position) => &[],
                Err(OutOfBounds) => return Err(start + position),
            };
        }
        Ok(())
    }

    /// Returns the first row that is neither readable nor null.
    pub(crate) fn first_unreadable(&self) -> Option<usize> {
        let all_read = match &self.layout {
            Layout::Offsets32(offsets, data) => are_ascending(offsets, data.len()),
            Layout::Offsets64(offsets, data) => are_ascending(offsets, data.len()),
            _ => false,
        };
        (!all_read).then(|| (0..self.len).find(|&row| !self.is_null(row) && self.get(row).is_err())).flatten()
    }

    /// Returns the first null row.
    pub(crate) fn first_null(&self) -> Option<usize> {
        self.null_rows().next()
    }

    /// Returns the null rows.
    pub(crate) fn null_rows(&self) -> impl Iterator<Item = usize> {
        let len = if self.may_hold_nulls() { self.len } else { 0 };
        (0..len).step_by(64).flat_map(move |start| {
            let block = (len - start).min(64);
            set_bits(!self.valid_bits(start, block) & ones(block)).map(move |row| start + row)
        })
    }

    /// Whether rows may be null: by type, in the array, or among the values of a dictionary.
    fn may_hold_nulls(&self) -> bool {
        let by_layout = match &self.layout {
            Layout::AllNull => true,
            Layout::Dictionary(_, values) => values.may_hold_nulls(),
            _ => false,
        };
        by_layout || self.nulls.is_some()
    }

    /// Returns the length of a row's value; 0 if it is null or unreadable.
    pub(crate) fn len_at(&self, row: usize) -> usize {
        if self.is_null(row) { 0 } else { self.get(row).map_or(0, <[u8]>::len) }
    }

    /// Returns the total length of all values.
    pub(crate) fn total_bytes(&self) -> usize {
        let between = |first: Option<usize>, last: Option<usize>| last.unwrap_or(0).saturating_sub(first.unwrap_or(0));
        match &self.layout {
            Layout::Offsets32(offsets, _) => {
                between(offsets.first().map(|end| end.as_usize()), offsets.last().map(|end| end.as_usize()))
            }
            Layout::Offsets64(offsets, _) => {
                between(offsets.first().map(|end| end.as_usize()), offsets.last().map(|end| end.as_usize()))
            }
            _ => (0..self.len).map(|row| self.len_at(row)).sum(),
        }
    }

    /// Returns all bytes contiguously if the type is fixed-size with `size` bytes.
    pub(crate) fn fixed(&self, size: usize) -> Option<&'a [u8]> {
        match self.layout {
            Layout::Fixed(own, data) if own == size => Some(data),
            _ => None,
        }
    }

    /// Calls `take` with the bytes of the rows in the mask, of the block that starts at row `start`; `None` if they
    /// are unreadable.
    #[inline]
    pub(crate) fn for_each(&self, start: usize, rows: u64, mut take: impl FnMut(usize, Option<&'a [u8]>)) {
        match &self.layout {
            Layout::Offsets32(offsets, data) => {
                set_bits(rows).for_each(|row| take(row, read_value(offsets, data, start + row).ok()));
            }
            Layout::Offsets64(offsets, data) => {
                set_bits(rows).for_each(|row| take(row, read_value(offsets, data, start + row).ok()));
            }
            _ => set_bits(rows).for_each(|row| take(row, self.get(start + row).ok())),
        }
    }

    /// Returns `len` values from `start`, including nulls, if they are contiguous with `SIZE` bytes each.
    #[inline]
    pub(crate) fn fixed_run<const SIZE: usize>(&self, start: usize, len: usize) -> Option<&'a [[u8; SIZE]]> {
        let bytes = match &self.layout {
            Layout::Offsets32(offsets, data) => fixed_run(offsets, data, start, len, SIZE as i32),
            Layout::Offsets64(offsets, data) => fixed_run(offsets, data, start, len, SIZE as i64),
            Layout::Fixed(size, data) if *size == SIZE => data.get(start * SIZE..(start + len) * SIZE),
            _ => None,
        };
        bytes.map(|bytes| bytes.as_chunks().0)
    }

    /// Prefetches `len` rows from `start` if they are contiguous.
    #[inline]
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        match &self.layout {
            Layout::Offsets32(offsets, data) => prefetch(offsets, data, start, len),
            Layout::Offsets64(offsets, data) => prefetch(offsets, data, start, len),
            _ => {}
        }
    }

    /// Returns a mask of the rows that are not null, of `len` rows from `start`.
    #[inline]
    pub(crate) fn valid_bits(&self, start: usize, len: usize) -> u64 {
        match (&self.layout, self.nulls) {
            (Layout::AllNull, _) => 0,
            (Layout::Dictionary(_, values), _) if values.may_hold_nulls() => {
                (0..len).fold(0, |bits, position| bits | u64::from(!self.is_null(start + position)) << position)
            }
            (_, None) => ones(len),
            (_, Some(nulls)) => bits(nulls.inner(), start, len),
        }
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

// A view has 16 bytes: the length, then either up to 12 bytes of data, or a prefix, a buffer index and an offset.
#[inline]
fn view<'a>(views: &'a [u128], buffers: &'a [Buffer], row: usize) -> Result<&'a [u8], OutOfBounds> {
    let view = views.get(row).ok_or(OutOfBounds)?;
    let len = *view as u32 as usize;
    if len <= 12 {
        let bytes = views[row..=row].to_byte_slice();
        return bytes.get(4..4 + len).ok_or(OutOfBounds);
    }
    let (buffer, offset) = ((view >> 64) as u32 as usize, (view >> 96) as u32 as usize);
    let buffer = buffers.get(buffer).ok_or(OutOfBounds)?.as_slice();
    buffer.get(offset..offset + len).ok_or(OutOfBounds)
}

fn dictionary<'a>(array: &'a dyn Array, key: &DataType) -> Option<Layout<'a>> {
    let (keys, values) = dictionary_parts(array, key)?;
    Some(Layout::Dictionary(keys, Box::new(BytesView::new(values.as_ref())?)))
}

// Byte strings between offsets in one buffer.

/// The maximum number of bytes to prefetch.
const AHEAD_MAX: usize = 8_192;

/// An offset, view or key is out of bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfBounds;

/// Returns one value.
#[inline]
pub(crate) fn read_value<'a, O: ArrowNativeType>(
    offsets: &[O],
    data: &'a [u8],
    row: usize,
) -> Result<&'a [u8], OutOfBounds> {
    let (Some(start), Some(end)) = (offsets.get(row), offsets.get(row + 1)) else { return Err(OutOfBounds) };
    data.get(start.as_usize()..end.as_usize()).ok_or(OutOfBounds)
}

/// Whether the offsets never decrease and stay within `end` bytes.
pub(crate) fn are_ascending<O: ArrowNativeType>(offsets: &[O], end: usize) -> bool {
    // Counting instead of searching lets the compiler vectorize.
    let ordered = offsets.windows(2).map(|ends| usize::from(ends[0] > ends[1])).sum::<usize>() == 0;
    // As unsigned numbers, negative offsets exceed every end.
    let is_within = |offset: Option<&O>| offset.is_none_or(|offset| offset.as_usize() <= end);
    ordered && is_within(offsets.first()) && is_within(offsets.last())
}

/// Returns consecutive values if each has `size` bytes.
#[inline]
pub(crate) fn fixed_run<'a, O: ArrowNativeTypeOp>(
    offsets: &[O],
    data: &'a [u8],
    first: usize,
    len: usize,
    size: O,
) -> Option<&'a [u8]> {
    let own = offsets.get(first..=first + len)?;
    // Checking all without an early exit lets the compiler vectorize.
    let differ = own.windows(2).fold(false, |differ, ends| differ | (ends[1].sub_wrapping(ends[0]) != size));
    if differ {
        return None;
    }
    data.get(own[0].as_usize()..own[len].as_usize())
}

/// Prefetches the bytes of `len` values.
#[inline]
pub(crate) fn prefetch<O: ArrowNativeType>(offsets: &[O], data: &[u8], first: usize, len: usize) {
    let (Some(start), Some(end)) = (offsets.get(first), offsets.get((first + len).min(offsets.len() - 1))) else {
        return;
    };
    let start = start.as_usize();
    // Invalid offsets could prefetch all of memory; names are short.
    prefetch_bytes(data, start, end.as_usize().min(start.saturating_add(AHEAD_MAX)));
}

/// Reads consecutive values and prefetches as many after them; returns false if one is unreadable.
#[inline]
pub(crate) fn read_values<'a, O: ArrowNativeType>(
    offsets: &[O],
    data: &'a [u8],
    first: usize,
    into: &mut [&'a [u8]],
) -> bool {
    let end = first + into.len();
    let Some(own) = offsets.get(first..=end) else { return false };
    prefetch(offsets, data, end, into.len());
    let mut all = true;
    for (value, ends) in into.iter_mut().zip(own.windows(2)) {
        match data.get(ends[0].as_usize()..ends[1].as_usize()) {
            Some(bytes) => *value = bytes,
            None => all = false,
        }
    }
    all
}

// Dictionary arrays with any key type.

/// Evaluates an expression with the keys in a method of `DictionaryKeys`, whatever their type.
macro_rules! with_keys {
    ($self:expr, $keys:ident => $result:expr) => {
        match $self {
            Self::I8($keys) => $result,
            Self::I16($keys) => $result,
            Self::I32($keys) => $result,
            Self::I64($keys) => $result,
            Self::U8($keys) => $result,
            Self::U16($keys) => $result,
            Self::U32($keys) => $result,
            Self::U64($keys) => $result,
        }
    };
}

/// The keys of a dictionary array.
#[derive(Debug)]
pub(crate) enum DictionaryKeys<'a> {
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

impl DictionaryKeys<'_> {
    /// Returns a key as an index of the values; a negative key becomes larger than any.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Option<usize> {
        with_keys!(self, keys => keys.get(row).map(|key| key.as_usize()))
    }

    /// Reads the values of consecutive rows; returns false if one is unreadable.
    fn read_values<'v>(&self, values: &BytesView<'v>, first: usize, into: &mut [&'v [u8]]) -> bool {
        with_keys!(self, keys => {
            let Some(own) = keys.get(first..first + into.len()) else { return false };
            own.iter().zip(into).all(|(key, value)| {
                values.value_of_key(key.as_usize()).map(|bytes| *value = bytes).is_ok()
            })
        })
    }
}

/// Returns the keys and values of a dictionary array.
pub(crate) fn dictionary_parts<'a>(array: &'a dyn Array, key: &DataType) -> Option<(DictionaryKeys<'a>, &'a ArrayRef)> {
    macro_rules! keys {
        ($type:ty, $keys:path) => {{
            let array = array.as_dictionary::<$type>();
            ($keys(array.keys().values()), array.values())
        }};
    }
    Some(match key {
        DataType::Int8 => keys!(Int8Type, DictionaryKeys::I8),
        DataType::Int16 => keys!(Int16Type, DictionaryKeys::I16),
        DataType::Int32 => keys!(Int32Type, DictionaryKeys::I32),
        DataType::Int64 => keys!(Int64Type, DictionaryKeys::I64),
        DataType::UInt8 => keys!(UInt8Type, DictionaryKeys::U8),
        DataType::UInt16 => keys!(UInt16Type, DictionaryKeys::U16),
        DataType::UInt32 => keys!(UInt32Type, DictionaryKeys::U32),
        DataType::UInt64 => keys!(UInt64Type, DictionaryKeys::U64),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::types::Int8Type;
    use arrow_array::{DictionaryArray, StringArray, StringViewArray};

    #[test]
    fn finds_null_and_unreadable_values_in_any_row() {
        for position in [0, 1, 63, 64, 65, 129] {
            let texts: Vec<_> =
                (0..130).map(|row| (row != position).then_some("a text that is not in its view")).collect();
            let plain = StringArray::from(texts.clone());
            let views = StringViewArray::from(texts.clone());
            let dictionary: DictionaryArray<Int8Type> = texts.into_iter().collect();
            for array in [&plain as &dyn Array, &views, &dictionary] {
                let view = BytesView::new(array).expect("byte strings");
                assert_eq!(view.first_null(), Some(position), "{:?}", array.data_type());
                assert_eq!(view.first_unreadable(), None);
                assert_eq!(view.total_bytes(), 129 * 30);
                let whole = array.slice(position + 1, 129 - position);
                assert_eq!(BytesView::new(&whole).expect("byte strings").first_null(), None);
            }
        }
        for (position, offsets) in [(0, [9, 1, 2, 3]), (1, [0, 2, 1, 3]), (2, [0, 1, 2, 9]), (0, [-1, 1, 2, 3])] {
            let layout = Layout::Offsets32(&offsets, b"abc");
            let view = BytesView { layout, nulls: None, is_text: false, len: 3 };
            assert_eq!(view.first_unreadable(), Some(position), "{offsets:?}");
        }
    }

    #[test]
    fn all_layouts_read_the_same_values() {
        let texts = [Some("a"), None, Some("a text that is longer than twelve bytes"), Some("")];
        let plain = StringArray::from(texts.to_vec());
        let views = StringViewArray::from(texts.to_vec());
        let dictionary: DictionaryArray<Int8Type> = texts.into_iter().collect();
        for array in [&plain as &dyn Array, &views, &dictionary] {
            let view = BytesView::new(array).expect("byte strings");
            assert!(view.is_text);
            assert_eq!(view.valid_bits(0, 4), 0b1101, "{:?}", array.data_type());
            let mut block = [&[][..]; 4];
            view.get_block(0, &mut block).expect("all can be read");
            for (row, text) in texts.into_iter().enumerate().filter(|(_, text)| text.is_some()) {
                assert_eq!(block[row], text.unwrap_or_default().as_bytes(), "{:?}", array.data_type());
            }
        }
    }

    #[test]
    fn reads_dictionaries_whose_null_rows_have_keys_without_a_value() {
        let values = StringArray::from(vec![Some("a"), None]);
        for (keys, valid, readable) in [
            ([0, 1, 0, 0], [true, true, true, true], Ok(())),
            ([0, 1, 2, -1], [true, true, false, false], Ok(())),
            ([0, 1, 2, -1], [true, true, false, true], Err(3)),
            ([0, 2, 0, 0], [true, true, true, true], Err(1)),
        ] {
            let nulls = NullBuffer::from(valid.to_vec());
            let values = BytesView::new(&values).expect("byte strings");
            let layout = Layout::Dictionary(DictionaryKeys::I8(&keys), Box::new(values));
            let view = BytesView { layout, nulls: Some(&nulls), is_text: true, len: 4 };
            let mut block = [&[][..]; 4];
            assert_eq!(view.get_block(0, &mut block), readable);
            assert_eq!(block[0], b"a");
            let are_null = (0..4).fold(0, |bits, row| bits | u64::from(view.is_null(row)) << row);
            assert_eq!(view.valid_bits(0, 4), !are_null & 0b1111);
            assert_eq!(view.first_null(), (0..4).find(|&row| view.is_null(row)));
        }
    }
}
