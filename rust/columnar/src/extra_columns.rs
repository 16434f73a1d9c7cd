//! Extra columns: columns of any type that are not in the schema and are passed from fragments to messages,
//! possibly in a later push.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, FieldRef};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use ssbroker_core::reassembly::{ExtraColumnSource, ExtraValues};

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, split_rows};
use crate::columns::Source;
use crate::error::{Error, Result, internal, type_name};
use crate::schema::fragments;
use crate::validation::{Arrow, validate, without_unused_values};
use crate::view::BytesView;

/// The charge of a value without its bytes.
const VALUE_BYTES: usize = 16;
/// The number of rows that are encoded at a time to compute sizes.
const BLOCK: usize = 8_192;

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
    /// For each row that was not pushed, in order, the number of pushed rows before it.
    pushed_before: Vec<usize>,
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
                actual: Some(type_name(field.data_type())),
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
            let expected = || format!("{}, as in the first push", type_name(own.data_type()));
            let Some(position) = columns.fields.iter().position(|field| field.name() == own.name()) else {
                return wrong(own.name(), expected(), None);
            };
            let array = &columns.arrays[position];
            match array_without_dictionaries(array, own.data_type()) {
                Ok(Some(array)) => arrays.push(array),
                _ => return wrong(own.name(), expected(), Some(type_name(array.data_type()))),
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
    /// `not_pushed` are rows of the batches, in ascending order; the assembler counts only the others.
    pub(crate) fn new(
        shape: &'a ExtraSchema,
        batches: &'a [ExtraColumns],
        starts: Vec<usize>,
        not_pushed: &[usize],
    ) -> Self {
        let sizes = batches.iter().map(ExtraColumns::sizes).collect();
        let pushed_before = not_pushed.iter().enumerate().map(|(position, row)| row - position).collect();
        Self { shape, batches, sizes, starts, pushed_before, failure: RefCell::new(None) }
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

    /// Returns the batch of a pushed row and the row's index in it.
    fn position(&self, pushed: usize) -> (usize, usize) {
        let row = pushed + self.pushed_before.partition_point(|&before| before <= pushed);
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
    fn len(&self, pushed: usize) -> usize {
        let (batch, row) = self.position(pushed);
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
    let parts = arrays.iter().zip(own).map(|(array, own)| take(array, &UInt64Array::from(own), None));
    let mut parts = parts.map(|part| without_dictionary(part?)).collect::<Arrow<Vec<_>>>()?;
    match parts.pop() {
        Some(part) if parts.is_empty() => Ok(part),
        last => {
            parts.extend(last);
            interleave(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &positions)
        }
    }
}

fn place_of(rows: &mut Vec<u64>, row: usize) -> usize {
    rows.push(row as u64);
    rows.len() - 1
}
