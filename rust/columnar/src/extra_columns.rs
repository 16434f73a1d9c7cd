//! Extra columns: columns of any type that are not in the schema and are passed from fragments to messages,
//! possibly in a later push.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, PrimitiveArray, UInt64Array, UnionArray, make_array};
use arrow_buffer::ArrowNativeType;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, FieldRef, UnionMode};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use ssbroker_core::reassembly::{ExtraColumnSource, ExtraValues};

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, split_rows};
use crate::columns::Source;
use crate::error::{Error, Result, internal};
use crate::schema::fragments;
use crate::view::BytesView;

/// The charge of a value without its bytes.
const VALUE_BYTES: usize = 16;
/// The number of rows that are encoded at a time to compute sizes.
const BLOCK: usize = 8_192;

pub(crate) type Arrow<T> = std::result::Result<T, ArrowError>;

/// The extra columns of a batch.
#[derive(Clone, Debug)]
pub(crate) struct ExtraColumns {
    pub(crate) fields: Vec<FieldRef>,
    pub(crate) arrays: Vec<ArrayRef>,
}

/// The sizes of a column's values.
#[derive(Debug)]
pub(crate) enum Sizes<'a> {
    /// The length of each byte string.
    Bytes(BytesView<'a>),
    /// Covered by the charge of every value.
    Fixed,
    /// The sizes of the encoded rows, computed on first use.
    Nested(&'a ArrayRef, RefCell<Vec<usize>>),
}

impl ExtraColumns {
    /// Reads the extra columns of a batch; `key` is the column with session keys.
    pub(crate) fn read(source: Source<'_>, key: Option<&str>) -> Result<Self> {
        let mut seen = HashSet::new();
        let has_id = source.batch.column_by_name(fragments::CONVERSATION_ID).is_some();
        let mut own = Self { fields: Vec::new(), arrays: Vec::new() };
        for (field, array) in source.batch.schema_ref().fields().iter().zip(source.batch.columns()) {
            let name = field.name().as_str();
            if !seen.insert(name) {
                return Err(source.duplicate_column(name));
            }
            let is_id = name == fragments::CONVERSATION_HANDLE && !has_id;
            if is_id || fragments::ALL.contains(&name) || key == Some(name) {
                continue;
            }
            // These columns are copied by offsets from elsewhere, so they must be validated.
            let valid = without_unused_values(array).and_then(|array| validate(&array).map(|()| array));
            own.arrays.push(valid.map_err(|error| Error::Malformed {
                column: source.qualified(name),
                row: None,
                what: error.to_string(),
            })?);
            own.fields.push(Arc::clone(field));
        }
        Ok(own)
    }

    pub(crate) fn sizes(&self) -> Vec<Sizes<'_>> {
        self.arrays.iter().map(Sizes::new).collect()
    }
}

impl<'a> Sizes<'a> {
    fn new(array: &'a ArrayRef) -> Self {
        match BytesView::new(array) {
            Some(view) => Self::Bytes(view),
            None if has_fixed_size(array.data_type()) => Self::Fixed,
            None => Self::Nested(array, RefCell::default()),
        }
    }

    /// Returns the charge of a row's value.
    pub(crate) fn get(&self, row: usize) -> usize {
        VALUE_BYTES
            + match self {
                Self::Bytes(view) => view.len_at(row),
                Self::Fixed => 0,
                Self::Nested(array, sizes) => {
                    let mut sizes = sizes.borrow_mut();
                    if sizes.is_empty() {
                        // A type that cannot be encoded is rejected before this is used for limits.
                        *sizes = row_sizes(array).unwrap_or_else(|_| vec![0; array.len()]);
                    }
                    sizes[row]
                }
            }
    }
}

fn has_fixed_size(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_fixed_size(values),
        DataType::Null | DataType::Boolean => true,
        other => other.is_primitive(),
    }
}

fn row_sizes(array: &ArrayRef) -> Arrow<Vec<usize>> {
    let converter = row_converter(array.data_type())?;
    let mut sizes = Vec::with_capacity(array.len());
    for start in (0..array.len()).step_by(BLOCK) {
        let part = without_dictionary(array.slice(start, BLOCK.min(array.len() - start)))?;
        sizes.extend(converter.convert_columns(&[part])?.iter().map(|row| row.as_ref().len()));
    }
    Ok(sizes)
}

/// Returns a row converter for the values of a column; for a dictionary, for its values.
pub(crate) fn row_converter(data_type: &DataType) -> Arrow<RowConverter> {
    match data_type {
        DataType::Dictionary(_, values) => row_converter(values),
        other => RowConverter::new(vec![SortField::new(other.clone())]),
    }
}

/// Decodes a dictionary array; returns any other array unchanged.
pub(crate) fn without_dictionary(array: ArrayRef) -> Arrow<ArrayRef> {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => without_dictionary(take(dictionary.values(), dictionary.keys(), None)?),
        None => Ok(array),
    }
}

/// The extra columns of a reassembly, which are the same in every push.
#[derive(Debug)]
pub(crate) struct ExtraSchema {
    /// With dictionaries replaced by their values.
    pub(crate) fields: Vec<FieldRef>,
    converter: RowConverter,
}

/// The extra columns of a push.
#[derive(Debug)]
pub(crate) struct PushedExtraColumns<'a> {
    shape: &'a ExtraSchema,
    batches: &'a [ExtraColumns],
    sizes: Vec<Vec<Sizes<'a>>>,
    /// The first row of each batch.
    starts: Vec<usize>,
    failure: RefCell<Option<ArrowError>>,
}

impl ExtraSchema {
    /// Returns the schema of the columns of the first batch.
    pub(crate) fn of(columns: &ExtraColumns) -> Result<Self> {
        let mut fields = Vec::with_capacity(columns.fields.len());
        for field in &columns.fields {
            let stored_type = type_without_dictionaries(field.data_type()).map_err(|_| Error::Schema {
                column: field.name().clone(),
                expected: "a supported type".to_owned(),
                actual: Some(field.data_type().to_string()),
            })?;
            fields.push(Arc::new(field.as_ref().clone().with_data_type(stored_type).with_nullable(true)));
        }
        Self::new(fields)
    }

    /// Creates a schema of fields without dictionaries.
    pub(crate) fn new(fields: Vec<FieldRef>) -> Result<Self> {
        let sorted = fields.iter().map(|field| SortField::new(field.data_type().clone())).collect();
        Ok(Self { fields, converter: RowConverter::new(sorted).map_err(|error| internal(&error))? })
    }

    /// Orders the columns of a batch like those of the first one.
    pub(crate) fn conform(&self, columns: &ExtraColumns) -> Result<ExtraColumns> {
        let wrong =
            |name: &str, expected: String, actual| Err(Error::Schema { column: name.to_owned(), expected, actual });
        let is_known = |field: &&FieldRef| self.fields.iter().any(|own| own.name() == field.name());
        if let Some(field) = columns.fields.iter().find(|field| !is_known(field)) {
            let expected = "the extra columns of the first push".to_owned();
            return wrong(field.name(), expected, Some("an additional column".to_owned()));
        }
        let mut arrays = Vec::with_capacity(self.fields.len());
        for own in &self.fields {
            let expected = || format!("{}, as in the first push", own.data_type());
            let Some(position) = columns.fields.iter().position(|field| field.name() == own.name()) else {
                return wrong(own.name(), expected(), None);
            };
            let array = &columns.arrays[position];
            match array_without_dictionaries(array, own.data_type()) {
                Ok(Some(array)) => arrays.push(array),
                _ => return wrong(own.name(), expected(), Some(array.data_type().to_string())),
            }
        }
        Ok(ExtraColumns { fields: self.fields.clone(), arrays })
    }

    /// Decodes stored rows to columns.
    pub(crate) fn columns_from_rows<'a>(&self, stored: impl Iterator<Item = &'a [u8]>) -> Arrow<Vec<ArrayRef>> {
        let parser = self.converter.parser();
        self.converter.convert_rows(stored.map(|row| parser.parse(row)).collect::<Vec<_>>())
    }

    /// Encodes columns as rows to store.
    pub(crate) fn to_rows(&self, columns: &[ArrayRef]) -> Arrow<Vec<Box<[u8]>>> {
        let rows = self.converter.convert_columns(columns)?;
        Ok(rows.iter().map(|row| row.as_ref().into()).collect())
    }
}

impl<'a> PushedExtraColumns<'a> {
    pub(crate) fn new(shape: &'a ExtraSchema, batches: &'a [ExtraColumns], starts: Vec<usize>) -> Self {
        let sizes = batches.iter().map(ExtraColumns::sizes).collect();
        Self { shape, batches, sizes, starts, failure: RefCell::new(None) }
    }

    /// Returns the error of an earlier `take`, if any.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.borrow().as_ref().map(internal)
    }

    /// Returns the charge of a message's extra columns.
    pub(crate) fn size(&self, of: &ExtraValues) -> usize {
        match of {
            ExtraValues::Row(row) => self.len(*row),
            ExtraValues::Stored(stored) => stored.len(),
        }
    }

    /// Returns the extra columns of messages.
    pub(crate) fn columns(&self, messages: &[ExtraValues]) -> Arrow<Vec<ArrayRef>> {
        let stored =
            || messages.iter().filter_map(|of| if let ExtraValues::Stored(row) = of { Some(&**row) } else { None });
        let read = if stored().next().is_some() { self.shape.columns_from_rows(stored())? } else { Vec::new() };
        let mut next = 0..;
        let position = |of: &ExtraValues| match of {
            ExtraValues::Row(row) => self.position(*row),
            ExtraValues::Stored(_) => (self.batches.len(), next.next().unwrap_or_default()),
        };
        let positions: Vec<_> = messages.iter().map(position).collect();
        let column = |number: usize| select(self.arrays(number).chain(read.get(number)), &positions);
        (0..self.shape.fields.len()).map(column).collect()
    }

    fn arrays(&self, column: usize) -> impl Iterator<Item = &ArrayRef> {
        self.batches.iter().map(move |batch| &batch.arrays[column])
    }

    /// Returns the batch of a row and the row's index in it.
    fn position(&self, row: usize) -> (usize, usize) {
        let batch = self.starts.partition_point(|&start| start <= row) - 1;
        (batch, row - self.starts[batch])
    }

    fn try_take(&self, rows: &[usize]) -> Arrow<Vec<Box<[u8]>>> {
        let positions: Vec<_> = rows.iter().map(|&row| self.position(row)).collect();
        let column = |number: usize| select(self.arrays(number), &positions);
        self.shape.to_rows(&(0..self.shape.fields.len()).map(column).collect::<Arrow<Vec<_>>>()?)
    }
}

impl ExtraColumnSource for PushedExtraColumns<'_> {
    fn len(&self, row: usize) -> usize {
        let (batch, row) = self.position(row);
        self.sizes[batch].iter().map(|sizes| sizes.get(row)).sum()
    }

    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>> {
        let mut stored = Vec::with_capacity(rows.len());
        for range in split_rows(rows.iter().map(|&row| self.len(row)), BATCH_BYTES, BATCH_ROWS) {
            match self.try_take(&rows[range]) {
                Ok(rows) => stored.extend(rows),
                Err(error) => *self.failure.borrow_mut() = Some(error),
            }
        }
        stored.resize(rows.len(), Box::default());
        stored
    }
}

/// Returns the type of a column after replacing dictionaries at any depth by their values.
fn type_without_dictionaries(data_type: &DataType) -> Arrow<DataType> {
    // Decoding rows yields exactly this type.
    let columns = row_converter(data_type)?.convert_rows([])?;
    Ok(columns.first().map_or(DataType::Null, |column| column.data_type().clone()))
}

/// Returns the array itself if it has the expected type or is a dictionary of it. Otherwise decodes nested
/// dictionaries; `None` if the result has another type.
fn array_without_dictionaries(array: &ArrayRef, expected: &DataType) -> Arrow<Option<ArrayRef>> {
    let mut values = array.data_type();
    while let DataType::Dictionary(_, inner) = values {
        values = inner;
    }
    if values == expected {
        return Ok(Some(Arc::clone(array)));
    }
    if type_without_dictionaries(values)? != *expected {
        return Ok(None);
    }
    let converter = row_converter(values)?;
    let rows = converter.convert_columns(&[without_dictionary(Arc::clone(array))?])?;
    Ok(converter.convert_rows(&rows)?.pop())
}

/// Gathers rows, given as (array, row), of several arrays of one logical type into one array; dictionaries are
/// decoded.
fn select<'a>(arrays: impl Iterator<Item = &'a ArrayRef>, rows: &[(usize, usize)]) -> Arrow<ArrayRef> {
    let arrays: Vec<_> = arrays.collect();
    if arrays.len() > 1 && arrays.iter().all(|array| array.as_any_dictionary_opt().is_none()) {
        return interleave(&arrays.iter().map(|array| &***array).collect::<Vec<_>>(), rows);
    }
    let mut own = vec![Vec::new(); arrays.len()];
    let positions: Vec<_> = rows.iter().map(|&(array, row)| (array, place_of(&mut own[array], row))).collect();
    let referenced_children = arrays.iter().zip(own).map(|(array, own)| take(array, &UInt64Array::from(own), None));
    let mut referenced_children =
        referenced_children.map(|part| without_dictionary(part?)).collect::<Arrow<Vec<_>>>()?;
    match referenced_children.pop() {
        Some(part) if referenced_children.is_empty() => Ok(part),
        last => {
            referenced_children.extend(last);
            interleave(&referenced_children.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &positions)
        }
    }
}

fn place_of(rows: &mut Vec<u64>, row: usize) -> usize {
    rows.push(row as u64);
    rows.len() - 1
}

// Validation of columns of any type.
//
// A slice of a nested column comes with all children of the whole column, and a dictionary with all its values. For
// a table that is pushed in many slices, validating everything for each slice would be slow, so only what the rows
// refer to is validated.

/// A run of this many values is validated in the time of a single one.
const VALUES_FOR_ONE: usize = 256;

/// The number of type ids of a union.
const UNION_IDS: usize = 128;

/// Removes values that the rows do not refer to from dense unions and run-end encoded columns; returns other
/// columns unchanged.
///
/// These two are the types of which all values are validated and encoded.
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
