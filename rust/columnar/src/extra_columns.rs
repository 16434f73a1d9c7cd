//! ExtraColumnSource columns: those that the schema does not know, of any type, carried along with their rows.

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

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, cut};
use crate::columns::Source;
use crate::error::{Error, Result, internal};
use crate::schema::fragments;
use crate::view::BytesView;

/// What a value is charged beside its bytes, in a column of any type.
const VALUE_BYTES: usize = 16;
/// How many rows are written to be counted at a time.
const BLOCK: usize = 8_192;

pub(crate) type Arrow<T> = std::result::Result<T, ArrowError>;

/// The further columns of a batch.
#[derive(Clone, Debug)]
pub(crate) struct ExtraColumns {
    pub(crate) fields: Vec<FieldRef>,
    pub(crate) arrays: Vec<ArrayRef>,
}

/// How large the values of a column are.
#[derive(Debug)]
pub(crate) enum Sizes<'a> {
    /// As many bytes as they have.
    Bytes(BytesView<'a>),
    /// No more than what every value is charged.
    Plain,
    /// Those of the rows that they are kept as; counted when the first of them is asked for.
    Nested(&'a ArrayRef, RefCell<Vec<usize>>),
}

impl ExtraColumns {
    /// Those of a batch; `key` is the column that holds session keys.
    pub(crate) fn read(source: Source<'_>, key: Option<&str>) -> Result<Self> {
        let mut seen = HashSet::new();
        let has_id = source.batch.column_by_name(fragments::CONVERSATION_ID).is_some();
        let mut own = Self { fields: Vec::new(), arrays: Vec::new() };
        for (field, array) in source.batch.schema_ref().fields().iter().zip(source.batch.columns()) {
            let name = field.name().as_str();
            if !seen.insert(name) {
                return Err(source.twice(name));
            }
            let is_id = name == fragments::CONVERSATION_HANDLE && !has_id;
            if is_id || fragments::ALL.contains(&name) || key == Some(name) {
                continue;
            }
            // What is only passed by need not be looked at; what is copied by foreign offsets must be sound.
            let sound = without_unused(array).and_then(|array| validate(&array).map(|()| array));
            own.arrays.push(sound.map_err(|error| Error::Malformed {
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
            None if is_plain(array.data_type()) => Self::Plain,
            None => Self::Nested(array, RefCell::default()),
        }
    }

    /// What the value of a row is charged.
    pub(crate) fn get(&self, row: usize) -> usize {
        VALUE_BYTES
            + match self {
                Self::Bytes(view) => view.len_at(row),
                Self::Plain => 0,
                Self::Nested(array, sizes) => {
                    let mut sizes = sizes.borrow_mut();
                    if sizes.is_empty() {
                        // A type that cannot be kept is never asked for by who keeps.
                        *sizes = row_sizes(array).unwrap_or_else(|_| vec![0; array.len()]);
                    }
                    sizes[row]
                }
            }
    }
}

fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_plain(values),
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

/// A converter of the values of a column; those of a dictionary, if it is one.
pub(crate) fn row_converter(data_type: &DataType) -> Arrow<RowConverter> {
    match data_type {
        DataType::Dictionary(_, values) => row_converter(values),
        other => RowConverter::new(vec![SortField::new(other.clone())]),
    }
}

/// The values of a dictionary at the places of its keys; of any other array, the array itself.
pub(crate) fn without_dictionary(array: ArrayRef) -> Arrow<ArrayRef> {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => without_dictionary(take(dictionary.values(), dictionary.keys(), None)?),
        None => Ok(array),
    }
}

// ExtraColumnSource columns on their way from fragments to messages, which may be in another push (M3).

/// The further columns that a reassembly carries: the same in every push.
#[derive(Debug)]
pub(crate) struct ExtraSchema {
    /// Dictionaries as their values.
    pub(crate) fields: Vec<FieldRef>,
    converter: RowConverter,
}

/// The further columns of a push.
#[derive(Debug)]
pub(crate) struct PushedExtraColumns<'a> {
    shape: &'a ExtraSchema,
    batches: &'a [ExtraColumns],
    sizes: Vec<Vec<Sizes<'a>>>,
    /// The number of each batch's first row.
    starts: Vec<usize>,
    failure: RefCell<Option<ArrowError>>,
}

impl ExtraSchema {
    /// The one that the columns of a first batch have.
    pub(crate) fn of(columns: &ExtraColumns) -> Result<Self> {
        let mut fields = Vec::with_capacity(columns.fields.len());
        for field in &columns.fields {
            let plain = plain_type(field.data_type()).map_err(|_| Error::Schema {
                column: field.name().clone(),
                expected: "a type that can be carried".to_owned(),
                actual: Some(field.data_type().to_string()),
            })?;
            fields.push(Arc::new(field.as_ref().clone().with_data_type(plain).with_nullable(true)));
        }
        Self::new(fields)
    }

    /// One of these columns, none of which is a dictionary.
    pub(crate) fn new(fields: Vec<FieldRef>) -> Result<Self> {
        let sorted = fields.iter().map(|field| SortField::new(field.data_type().clone())).collect();
        Ok(Self { fields, converter: RowConverter::new(sorted).map_err(|error| internal(&error))? })
    }

    /// The columns of a batch in the order of the first one's.
    pub(crate) fn arrange(&self, columns: &ExtraColumns) -> Result<ExtraColumns> {
        let wrong =
            |name: &str, expected: String, actual| Err(Error::Schema { column: name.to_owned(), expected, actual });
        let is_known = |field: &&FieldRef| self.fields.iter().any(|own| own.name() == field.name());
        if let Some(field) = columns.fields.iter().find(|field| !is_known(field)) {
            let expected = "the extra columns that came first".to_owned();
            return wrong(field.name(), expected, Some("one more".to_owned()));
        }
        let mut arrays = Vec::with_capacity(self.fields.len());
        for own in &self.fields {
            let expected = || format!("{}, as it came first", own.data_type());
            let Some(place) = columns.fields.iter().position(|field| field.name() == own.name()) else {
                return wrong(own.name(), expected(), None);
            };
            let array = &columns.arrays[place];
            match plain_array(array, own.data_type()) {
                Ok(Some(array)) => arrays.push(array),
                _ => return wrong(own.name(), expected(), Some(array.data_type().to_string())),
            }
        }
        Ok(ExtraColumns { fields: self.fields.clone(), arrays })
    }

    /// Rows that were kept, as columns.
    pub(crate) fn read<'a>(&self, kept: impl Iterator<Item = &'a [u8]>) -> Arrow<Vec<ArrayRef>> {
        let parser = self.converter.parser();
        self.converter.convert_rows(kept.map(|row| parser.parse(row)).collect::<Vec<_>>())
    }

    /// Columns as rows to keep.
    pub(crate) fn keep(&self, columns: &[ArrayRef]) -> Arrow<Vec<Box<[u8]>>> {
        let rows = self.converter.convert_columns(columns)?;
        Ok(rows.iter().map(|row| row.as_ref().into()).collect())
    }
}

impl<'a> PushedExtraColumns<'a> {
    pub(crate) fn new(shape: &'a ExtraSchema, batches: &'a [ExtraColumns], starts: Vec<usize>) -> Self {
        let sizes = batches.iter().map(ExtraColumns::sizes).collect();
        Self { shape, batches, sizes, starts, failure: RefCell::new(None) }
    }

    /// What went wrong when rows were to be kept.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.borrow().as_ref().map(internal)
    }

    /// The bytes of a message's further columns.
    pub(crate) fn size(&self, of: &ExtraValues) -> usize {
        match of {
            ExtraValues::Row(row) => self.len(*row),
            ExtraValues::Stored(kept) => kept.len(),
        }
    }

    /// The further columns of messages.
    pub(crate) fn columns(&self, messages: &[ExtraValues]) -> Arrow<Vec<ArrayRef>> {
        let kept =
            || messages.iter().filter_map(|of| if let ExtraValues::Stored(row) = of { Some(&**row) } else { None });
        let read = if kept().next().is_some() { self.shape.read(kept())? } else { Vec::new() };
        let mut next = 0..;
        let place = |of: &ExtraValues| match of {
            ExtraValues::Row(row) => self.place(*row),
            ExtraValues::Stored(_) => (self.batches.len(), next.next().unwrap_or_default()),
        };
        let places: Vec<_> = messages.iter().map(place).collect();
        let column = |number: usize| select(self.arrays(number).chain(read.get(number)), &places);
        (0..self.shape.fields.len()).map(column).collect()
    }

    fn arrays(&self, column: usize) -> impl Iterator<Item = &ArrayRef> {
        self.batches.iter().map(move |batch| &batch.arrays[column])
    }

    /// The batch of a row, and its number there.
    fn place(&self, row: usize) -> (usize, usize) {
        let batch = self.starts.partition_point(|&start| start <= row) - 1;
        (batch, row - self.starts[batch])
    }

    fn try_take(&self, rows: &[usize]) -> Arrow<Vec<Box<[u8]>>> {
        let places: Vec<_> = rows.iter().map(|&row| self.place(row)).collect();
        let column = |number: usize| select(self.arrays(number), &places);
        self.shape.keep(&(0..self.shape.fields.len()).map(column).collect::<Arrow<Vec<_>>>()?)
    }
}

impl ExtraColumnSource for PushedExtraColumns<'_> {
    fn len(&self, row: usize) -> usize {
        let (batch, row) = self.place(row);
        self.sizes[batch].iter().map(|sizes| sizes.get(row)).sum()
    }

    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>> {
        let mut kept = Vec::with_capacity(rows.len());
        for range in cut(rows.iter().map(|&row| self.len(row)), BATCH_BYTES, BATCH_ROWS) {
            match self.try_take(&rows[range]) {
                Ok(rows) => kept.extend(rows),
                Err(error) => *self.failure.borrow_mut() = Some(error),
            }
        }
        kept.resize(rows.len(), Box::default());
        kept
    }
}

/// The type that a column has when none of its values, at any depth, is a dictionary.
fn plain_type(data_type: &DataType) -> Arrow<DataType> {
    // What rows become is what they are kept as.
    let columns = row_converter(data_type)?.convert_rows([])?;
    Ok(columns.first().map_or(DataType::Null, |column| column.data_type().clone()))
}

/// The array itself if it has the expected type, or is a dictionary of such values; else what it becomes without dictionaries, if that
/// is of the type.
fn plain_array(array: &ArrayRef, expected: &DataType) -> Arrow<Option<ArrayRef>> {
    let mut values = array.data_type();
    while let DataType::Dictionary(_, inner) = values {
        values = inner;
    }
    if values == expected {
        return Ok(Some(Arc::clone(array)));
    }
    if plain_type(values)? != *expected {
        return Ok(None);
    }
    let converter = row_converter(values)?;
    let rows = converter.convert_columns(&[without_dictionary(Arc::clone(array))?])?;
    Ok(converter.convert_rows(&rows)?.pop())
}

/// Rows of several arrays of one logical type, each told by the number of an array and of a row there, as one array; a dictionary comes
/// out as its values.
fn select<'a>(arrays: impl Iterator<Item = &'a ArrayRef>, rows: &[(usize, usize)]) -> Arrow<ArrayRef> {
    let arrays: Vec<_> = arrays.collect();
    if arrays.len() > 1 && arrays.iter().all(|array| array.as_any_dictionary_opt().is_none()) {
        return interleave(&arrays.iter().map(|array| &***array).collect::<Vec<_>>(), rows);
    }
    let mut own = vec![Vec::new(); arrays.len()];
    let places: Vec<_> = rows.iter().map(|&(array, row)| (array, place_of(&mut own[array], row))).collect();
    let parts = arrays.iter().zip(own).map(|(array, own)| take(array, &UInt64Array::from(own), None));
    let mut parts = parts.map(|part| without_dictionary(part?)).collect::<Arrow<Vec<_>>>()?;
    match parts.pop() {
        Some(part) if parts.is_empty() => Ok(part),
        last => {
            parts.extend(last);
            interleave(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &places)
        }
    }
}

fn place_of(rows: &mut Vec<u64>, row: usize) -> usize {
    rows.push(row as u64);
    rows.len() - 1
}

// Whether a column of any type is sound wherever its rows lead.
//
// A slice of a nested column comes with all children of the whole, and a dictionary with all of its values. A table that is pushed in
// many slices would be looked through for each of them, so only what the rows refer to is looked at.

/// How many values that lie one after the other are looked at in the time of one alone.
const VALUES_FOR_ONE: usize = 256;

/// How many ids a union has for its types.
const UNION_IDS: usize = 128;

/// The rows of a dense union or of runs with no more behind them than they refer to; any other column as it is.
///
/// Of these two all values are looked at, and written where rows are kept.
pub(crate) fn without_unused(array: &ArrayRef) -> Arrow<ArrayRef> {
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
    let places = || ids.iter().map(|&id| id as usize).zip(offsets.iter().flat_map(|offsets| offsets.iter().copied()));
    let mut ranges = [(i32::MAX, -1); UNION_IDS];
    for (id, offset) in places() {
        let (first, last) = ranges[id];
        ranges[id] = (first.min(offset), last.max(offset));
    }
    let offsets = places().map(|(id, offset)| offset - ranges[id].0).collect();
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
    // Where the ends are not ascending, what is found is refused below.
    let used = if array.is_empty() { 0..0 } else { ends.get_start_physical_index()..ends.get_end_physical_index() + 1 };
    let outside = || ArrowError::InvalidArgumentError("run ends that are not ascending".to_owned());
    let found = ends.values().get(used.clone()).filter(|_| used.end <= runs.values().len()).ok_or_else(outside)?;
    let end = |end: &R::Native| R::Native::usize_as(end.as_usize().saturating_sub(ends.offset()).min(array.len()));
    let ends = PrimitiveArray::<R>::from_iter_values(found.iter().map(end));
    let values = runs.values().slice(used.start, used.len());
    let made = array.to_data().into_builder().offset(0).child_data(vec![ends.to_data(), values.to_data()]);
    Ok(make_array(made.build()?))
}

/// Refuses offsets, views and keys that lead outside, and text that is no UTF-8.
pub(crate) fn validate(array: &dyn Array) -> Arrow<()> {
    array.to_data().validate_data()?;
    parts(array).iter().try_for_each(|part| match part.data_type() {
        // Rows are made of all values of a dictionary that is inside of another type.
        DataType::Dictionary(..) => part.to_data().validate_full(),
        _ => validate(part),
    })
}

/// What the rows of an array refer to, if the array itself is sound.
fn parts(array: &dyn Array) -> Vec<ArrayRef> {
    match array.data_type() {
        DataType::List(_) => vec![between(array.as_list::<i32>().values(), array.as_list::<i32>().value_offsets())],
        DataType::LargeList(_) => {
            vec![between(array.as_list::<i64>().values(), array.as_list::<i64>().value_offsets())]
        }
        DataType::ListView(_) => {
            let lists = array.as_list_view::<i32>();
            vec![around(lists.values(), lists.value_offsets(), lists.value_sizes())]
        }
        DataType::LargeListView(_) => {
            let lists = array.as_list_view::<i64>();
            vec![around(lists.values(), lists.value_offsets(), lists.value_sizes())]
        }
        DataType::Map(..) => {
            let entries: ArrayRef = Arc::new(array.as_map().entries().clone());
            vec![between(&entries, array.as_map().value_offsets())]
        }
        // The children of these two were cut with them.
        DataType::FixedSizeList(..) => vec![Arc::clone(array.as_fixed_size_list().values())],
        DataType::Struct(_) => array.as_struct().columns().to_vec(),
        DataType::Dictionary(_, values) if !values.is_nested() => used_values(array),
        _ => array.to_data().child_data().iter().cloned().map(make_array).collect(),
    }
}

/// The values that a dictionary has for its keys.
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

/// The values in which lists of these offsets lie.
fn between<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O]) -> ArrayRef {
    let end = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
    let start = end(offsets.first());
    values.slice(start, end(offsets.last()) - start)
}

/// The values in which lists of these offsets and sizes lie.
fn around<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O], sizes: &[O]) -> ArrayRef {
    let ranges = offsets.iter().zip(sizes).map(|(start, size)| (start.as_usize(), start.as_usize() + size.as_usize()));
    let ranges = ranges.filter(|(start, end)| start < end);
    let (start, end) =
        ranges.reduce(|(first, last), (start, end)| (first.min(start), last.max(end))).unwrap_or_default();
    values.slice(start, end - start)
}
