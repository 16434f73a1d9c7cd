//! Validation of columns of any type.
//!
//! A slice of a nested column includes all children of the whole column, and a dictionary includes all its values. If a
//! table is pushed in many slices, validating everything for each slice would be slow, so only the values that the rows
//! refer to are validated.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, PrimitiveArray, UnionArray, make_array};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{ArrowError, DataType, UnionMode};

pub(crate) type Arrow<T> = Result<T, ArrowError>;

/// A run of this many values is validated in the time of a single one.
const VALUES_FOR_ONE: usize = 256;

/// The number of type ids of a union.
const UNION_IDS: usize = 128;

/// Removes values that the rows do not refer to from dense unions and run-end encoded columns; returns other
/// columns unchanged.
///
/// For these two types, all values are validated and encoded.
pub(crate) fn without_unused_values(array: &ArrayRef) -> Arrow<ArrayRef> {
    match array.data_type() {
        DataType::Union(_, UnionMode::Dense) => union(array.as_union()),
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(array),
            DataType::Int32 => runs::<Int32Type>(array),
            _ => runs::<Int64Type>(array),
        },
        _ => Ok(Arc::clone(array)),
    }
}

fn union(array: &UnionArray) -> Arrow<ArrayRef> {
    array.to_data().validate_data()?;
    let (fields, ids, offsets, children) = array.clone().into_parts();
    let positions =
        || ids.iter().map(|&id| id as usize).zip(offsets.iter().flat_map(|offsets| offsets.iter().copied()));
    let mut ranges = [(i32::MAX, -1); UNION_IDS];
    for (id, offset) in positions() {
        let (first, last) = ranges[id];
        ranges[id] = (first.min(offset), last.max(offset));
    }
    let offsets = positions().map(|(id, offset)| offset - ranges[id].0).collect();
    let used = |(id, child): (i8, &ArrayRef)| match ranges[id as usize] {
        (_, -1) => child.slice(0, 0),
        (first, last) => child.slice(first as usize, (last - first) as usize + 1),
    };
    let children = fields.iter().map(|(id, _)| id).zip(&children).map(used).collect();
    Ok(Arc::new(UnionArray::try_new(fields, ids, Some(offsets), children)?))
}

fn runs<R: RunEndIndexType>(array: &ArrayRef) -> Arrow<ArrayRef> {
    let runs = array.as_run::<R>();
    let ends = runs.run_ends();
    // Ends that are not ascending are rejected below.
    let used = if array.is_empty() { 0..0 } else { ends.get_start_physical_index()..ends.get_end_physical_index() + 1 };
    let outside = || ArrowError::InvalidArgumentError("run ends are not ascending".to_owned());
    let found = ends.values().get(used.clone()).filter(|_| used.end <= runs.values().len()).ok_or_else(outside)?;
    let end = |end: &R::Native| R::Native::usize_as(end.as_usize().saturating_sub(ends.offset()).min(array.len()));
    let ends = PrimitiveArray::<R>::from_iter_values(found.iter().map(end));
    let values = runs.values().slice(used.start, used.len());
    let array_data = array.to_data().into_builder().offset(0).child_data(vec![ends.to_data(), values.to_data()]);
    Ok(make_array(array_data.build()?))
}

/// Rejects offsets, views and keys out of bounds, and invalid UTF-8.
pub(crate) fn validate(array: &dyn Array) -> Arrow<()> {
    array.to_data().validate_data()?;
    referenced_children(array).iter().try_for_each(|part| match part.data_type() {
        // Encoding rows uses all values of a dictionary inside another type.
        DataType::Dictionary(..) => part.to_data().validate_full(),
        _ => validate(part),
    })
}

/// Returns the children that the rows of a valid array refer to.
fn referenced_children(array: &dyn Array) -> Vec<ArrayRef> {
    match array.data_type() {
        DataType::List(_) => vec![list_values(array.as_list::<i32>().values(), array.as_list::<i32>().value_offsets())],
        DataType::LargeList(_) => {
            vec![list_values(array.as_list::<i64>().values(), array.as_list::<i64>().value_offsets())]
        }
        DataType::ListView(_) => {
            let lists = array.as_list_view::<i32>();
            vec![list_view_values(lists.values(), lists.value_offsets(), lists.value_sizes())]
        }
        DataType::LargeListView(_) => {
            let lists = array.as_list_view::<i64>();
            vec![list_view_values(lists.values(), lists.value_offsets(), lists.value_sizes())]
        }
        DataType::Map(..) => {
            let entries: ArrayRef = Arc::new(array.as_map().entries().clone());
            vec![list_values(&entries, array.as_map().value_offsets())]
        }
        // The children of these two are sliced with them.
        DataType::FixedSizeList(..) => vec![Arc::clone(array.as_fixed_size_list().values())],
        DataType::Struct(_) => array.as_struct().columns().to_vec(),
        DataType::Dictionary(_, values) if !values.is_nested() => used_values(array),
        _ => array.to_data().child_data().iter().cloned().map(make_array).collect(),
    }
}

/// Returns the values that the keys of a dictionary refer to.
fn used_values(array: &dyn Array) -> Vec<ArrayRef> {
    let dictionary = array.as_any_dictionary();
    let values = dictionary.values();
    if values.len() <= array.len().saturating_mul(VALUES_FOR_ONE) {
        return vec![Arc::clone(values)];
    }
    let mut keys = dictionary.normalized_keys();
    keys.sort_unstable();
    keys.dedup();
    keys.chunk_by(|key, next| key + 1 == *next).map(|run| values.slice(run[0], run.len())).collect()
}

/// Returns the values between the first and last of these list offsets.
fn list_values<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O]) -> ArrayRef {
    let end = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
    let start = end(offsets.first());
    values.slice(start, end(offsets.last()) - start)
}

/// Returns the values between the lowest start and the highest end of these list views.
fn list_view_values<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O], sizes: &[O]) -> ArrayRef {
    let ranges = offsets.iter().zip(sizes).map(|(start, size)| (start.as_usize(), start.as_usize() + size.as_usize()));
    let ranges = ranges.filter(|(start, end)| start < end);
    let (start, end) =
        ranges.reduce(|(first, last), (start, end)| (first.min(start), last.max(end))).unwrap_or_default();
    values.slice(start, end - start)
}
