//! Further columns on their way from fragments to messages, which may be in another push (M3).

use std::cell::RefCell;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, FieldRef};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use ssbroker_core::reassembly::{Further, FurtherOf};

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, cut};
use crate::catalog::internal;
use crate::error::{Error, Result};
use crate::further::{Arrow, FurtherColumns, Sizes, row_converter, without_dictionary};

/// The further columns that a reassembly carries: the same in every push.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Dictionaries as their values.
    pub(crate) fields: Vec<FieldRef>,
    converter: RowConverter,
}

/// The further columns of a push.
#[derive(Debug)]
pub(crate) struct Carried<'a> {
    shape: &'a Shape,
    batches: &'a [FurtherColumns],
    sizes: Vec<Vec<Sizes<'a>>>,
    /// The number of each batch's first row.
    starts: Vec<usize>,
    failure: RefCell<Option<ArrowError>>,
}

impl Shape {
    /// The one that the columns of a first batch have.
    pub(crate) fn of(columns: &FurtherColumns) -> Result<Self> {
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
    pub(crate) fn arrange(&self, columns: &FurtherColumns) -> Result<FurtherColumns> {
        let wrong =
            |name: &str, expected: String, actual| Err(Error::Schema { column: name.to_owned(), expected, actual });
        let is_known = |field: &&FieldRef| self.fields.iter().any(|own| own.name() == field.name());
        if let Some(field) = columns.fields.iter().find(|field| !is_known(field)) {
            let expected = "the further columns that came first".to_owned();
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
        Ok(FurtherColumns { fields: self.fields.clone(), arrays })
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

impl<'a> Carried<'a> {
    pub(crate) fn new(shape: &'a Shape, batches: &'a [FurtherColumns], starts: Vec<usize>) -> Self {
        let sizes = batches.iter().map(FurtherColumns::sizes).collect();
        Self { shape, batches, sizes, starts, failure: RefCell::new(None) }
    }

    /// What went wrong when rows were to be kept.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.borrow().as_ref().map(internal)
    }

    /// The bytes of a message's further columns.
    pub(crate) fn size(&self, of: &FurtherOf) -> usize {
        match of {
            FurtherOf::Row(row) => self.len(*row),
            FurtherOf::Kept(kept) => kept.len(),
        }
    }

    /// The further columns of messages.
    pub(crate) fn columns(&self, messages: &[FurtherOf]) -> Arrow<Vec<ArrayRef>> {
        let kept = || messages.iter().filter_map(|of| if let FurtherOf::Kept(row) = of { Some(&**row) } else { None });
        let read = if kept().next().is_some() { self.shape.read(kept())? } else { Vec::new() };
        let mut next = 0..;
        let place = |of: &FurtherOf| match of {
            FurtherOf::Row(row) => self.place(*row),
            FurtherOf::Kept(_) => (self.batches.len(), next.next().unwrap_or_default()),
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

impl Further for Carried<'_> {
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
