//! Dictionary arrays, whatever the type of their keys.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;

/// The keys of a dictionary array.
#[derive(Debug)]
pub(crate) enum Keys<'a> {
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

impl Keys<'_> {
    /// A key as a number of the dictionary's values; a negative one becomes larger than any.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Option<usize> {
        match self {
            Self::I8(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::I16(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::I32(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::I64(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::U8(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::U16(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::U32(keys) => keys.get(row).map(|key| key.as_usize()),
            Self::U64(keys) => keys.get(row).map(|key| key.as_usize()),
        }
    }
}

/// The keys and the values of a dictionary array.
pub(crate) fn dictionary_parts<'a>(array: &'a dyn Array, key: &DataType) -> Option<(Keys<'a>, &'a ArrayRef)> {
    macro_rules! keys {
        ($type:ty, $keys:path) => {{
            let array = array.as_dictionary::<$type>();
            ($keys(array.keys().values()), array.values())
        }};
    }
    Some(match key {
        DataType::Int8 => keys!(Int8Type, Keys::I8),
        DataType::Int16 => keys!(Int16Type, Keys::I16),
        DataType::Int32 => keys!(Int32Type, Keys::I32),
        DataType::Int64 => keys!(Int64Type, Keys::I64),
        DataType::UInt8 => keys!(UInt8Type, Keys::U8),
        DataType::UInt16 => keys!(UInt16Type, Keys::U16),
        DataType::UInt32 => keys!(UInt32Type, Keys::U32),
        DataType::UInt64 => keys!(UInt64Type, Keys::U64),
        _ => return None,
    })
}
