//! Columns of a record batch, by name and logical type.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use ssbroker_core::{Invalid, InvalidKind};

use crate::dictionary::dictionary_parts;
use crate::error::{Error, Result};
use crate::view::BytesView;

/// A table's record batches, of which one is read; errors name its columns and count its rows in the whole input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) batch: &'a RecordBatch,
    /// What stands before the column's name, with a dot; empty where there is one table only.
    pub(crate) table: &'static str,
    pub(crate) first_row: usize,
}

/// A type of integers, into which wider ones are brought.
pub(crate) trait Integer: ArrowPrimitiveType<Native: TryFrom<i128>> {}

impl<T: ArrowPrimitiveType<Native: TryFrom<i128>>> Integer for T {}

fn type_name<T: Integer>() -> String {
    T::DATA_TYPE.to_string().to_lowercase()
}

fn integer_of<T: Integer>() -> String {
    format!("a {}-bit integer", 8 * size_of::<T::Native>())
}

/// Whether a column is called so but for upper and lower case, for white space around it, and for what parts its words.
fn means(found: &str, name: &str) -> bool {
    let found = found.trim();
    let same = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || (b == b'_' && (a == b' ' || a == b'-'));
    found.len() == name.len() && found.bytes().zip(name.bytes()).all(same)
}

impl<'a> Source<'a> {
    pub(crate) fn qualified(&self, column: &str) -> String {
        format!("{}{column}", self.table)
    }

    /// The column of a name. Where there is none, another may be meant: to pass it by as a further column would say nothing of it (K27).
    pub(crate) fn column(&self, name: &str) -> Result<Option<&'a ArrayRef>> {
        let found = self.batch.column_by_name(name);
        if found.is_none()
            && let Some(meant) = self.batch.schema_ref().fields().iter().find(|field| means(field.name(), name))
        {
            let (expected, actual) = ("a column of this very name".to_owned(), Some(format!("{:?}", meant.name())));
            return Err(Error::Schema { column: self.qualified(name), expected, actual });
        }
        Ok(found)
    }

    fn required(&self, name: &str, expected: &str) -> Result<&'a ArrayRef> {
        self.column(name)?.ok_or_else(|| self.mistyped(name, expected, None))
    }

    pub(crate) fn mistyped(&self, name: &str, expected: &str, actual: Option<&DataType>) -> Error {
        let actual = actual.map(ToString::to_string);
        Error::Schema { column: self.qualified(name), expected: expected.to_owned(), actual }
    }

    /// Two columns have a name that only one can have.
    pub(crate) fn twice(&self, name: &str) -> Error {
        let (expected, actual) = ("a column of each name".to_owned(), Some("two of this one".to_owned()));
        Error::Schema { column: self.qualified(name), expected, actual }
    }

    /// None of these names is that of two columns; further columns may have what names they like.
    pub(crate) fn each_once(&self, names: &[&str]) -> Result<()> {
        let fields = self.batch.schema_ref().fields();
        let is_twice = |name: &&&str| fields.iter().filter(|field| field.name() == **name).count() > 1;
        names.iter().find(is_twice).map_or(Ok(()), |name| Err(self.twice(name)))
    }

    pub(crate) fn invalid(
        &self,
        kind: InvalidKind,
        column: &str,
        row: usize,
        value: Option<&[u8]>,
        expected: &str,
    ) -> Error {
        Invalid::new(kind, &self.qualified(column), Some(self.first_row + row), value, expected).into()
    }

    pub(crate) fn null(&self, column: &str, row: usize, expected: &str) -> Error {
        self.invalid(InvalidKind::Null, column, row, None, expected)
    }

    pub(crate) fn out_of_bounds(&self, column: &str, row: usize) -> Error {
        let what = "an offset, a view or a dictionary key leads outside its buffer".to_owned();
        Error::Malformed { column: self.qualified(column), row: Some(self.first_row + row), what }
    }

    /// A column of text that must be there.
    pub(crate) fn text(&self, name: &str) -> Result<BytesView<'a>> {
        self.as_text(name, self.required(name, "text")?)
    }

    /// A column of text that may be left out.
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<BytesView<'a>>> {
        self.column(name)?.map(|array| self.as_text(name, array)).transpose()
    }

    fn as_text(&self, name: &str, array: &'a ArrayRef) -> Result<BytesView<'a>> {
        BytesView::new(array)
            .filter(|view| view.is_text || view.is_always_null())
            .ok_or_else(|| self.mistyped(name, "text", Some(array.data_type())))
    }

    /// The text of a row that must not be null.
    pub(crate) fn text_at(&self, name: &str, view: &BytesView<'a>, row: usize) -> Result<&'a [u8]> {
        self.optional_text_at(name, view, row)?.ok_or_else(|| self.null(name, row, "text"))
    }

    /// The text of a row.
    pub(crate) fn optional_text_at(&self, name: &str, view: &BytesView<'a>, row: usize) -> Result<Option<&'a [u8]>> {
        if view.is_null(row) {
            return Ok(None);
        }
        let bytes = view.get(row).map_err(|_| self.out_of_bounds(name, row))?;
        if std::str::from_utf8(bytes).is_err() {
            let (column, row) = (self.qualified(name), Some(self.first_row + row));
            return Err(Error::Malformed { column, row, what: "the text is not UTF-8".to_owned() });
        }
        Ok(Some(bytes))
    }

    /// A column of bytes that may be left out; whatever is not null can be read.
    pub(crate) fn optional_bytes(&self, name: &str) -> Result<Option<BytesView<'a>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        let view = BytesView::new(array).filter(|view| !view.is_text);
        let view = view.ok_or_else(|| self.mistyped(name, "binary", Some(array.data_type())))?;
        view.first_unreadable().map_or(Ok(Some(view)), |row| Err(self.out_of_bounds(name, row)))
    }

    /// A column of bytes that must be there, and none of them null.
    pub(crate) fn bytes(&self, name: &str) -> Result<BytesView<'a>> {
        let view = self.optional_bytes(name)?.ok_or_else(|| self.mistyped(name, "binary", None))?;
        view.first_null().map_or(Ok(view), |row| Err(self.null(name, row, "bytes, which may be none")))
    }

    /// A column of booleans that must be there, and none of them null.
    pub(crate) fn required_booleans(&self, name: &str) -> Result<BooleanBuffer> {
        let booleans = self.booleans(name)?.ok_or_else(|| self.mistyped(name, "bool", None))?;
        Ok(booleans.values().clone())
    }

    /// A column of booleans that may be left out.
    pub(crate) fn booleans(&self, name: &str) -> Result<Option<BooleanArray>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        let array = match array.data_type() {
            DataType::Boolean => array.as_boolean().clone(),
            DataType::Null => BooleanArray::new_null(array.len()),
            DataType::Dictionary(key, values) if **values == DataType::Boolean => {
                let (rows, values) = self.dictionary_rows(name, array, key)?;
                rows.into_iter().map(|row| row.map(|row| values.as_boolean().value(row))).collect()
            }
            other => return Err(self.mistyped(name, "bool", Some(other))),
        };
        if array.null_count() > 0 {
            let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or_default();
            return Err(self.null(name, row, "true or false"));
        }
        Ok(Some(array))
    }

    /// For each row of a dictionary array, the place of its value; `None` where it is null.
    fn dictionary_rows(
        &self,
        name: &str,
        array: &'a ArrayRef,
        key: &DataType,
    ) -> Result<(Vec<Option<usize>>, &'a ArrayRef)> {
        let Some((keys, values)) = dictionary_parts(array, key) else {
            return Err(self.mistyped(name, "a dictionary with integer keys", Some(array.data_type())));
        };
        let place = |row: usize| match keys.get(row).filter(|_| array.is_valid(row)) {
            Some(place) if place >= values.len() => Err(self.out_of_bounds(name, row)),
            place => Ok(place.filter(|&place| values.is_valid(place))),
        };
        Ok(((0..array.len()).map(place).collect::<Result<_>>()?, values))
    }

    /// The values of a column, or those that its dictionary has for its rows.
    fn by_row<T: Copy>(
        &self,
        name: &str,
        array: &'a ArrayRef,
        read: impl Fn(&ArrayRef) -> Result<Vec<Option<T>>>,
    ) -> Result<Vec<Option<T>>> {
        let DataType::Dictionary(key, _) = array.data_type() else { return read(array) };
        let (rows, values) = self.dictionary_rows(name, array, key)?;
        let values = read(values)?;
        Ok(rows.into_iter().map(|row| row.and_then(|row| values[row])).collect())
    }

    /// A column of integers that may be left out.
    pub(crate) fn integers<T: Integer>(&self, name: &str) -> Result<Option<Vec<Option<T::Native>>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        self.narrow_integers::<T>(name, array).map(Some)
    }

    /// A column of integers that must be there, and none of them null.
    pub(crate) fn required_integers<T: Integer>(&self, name: &str) -> Result<ScalarBuffer<T::Native>> {
        let array = self.required(name, &type_name::<T>())?;
        if let Some(array) = array.as_primitive_opt::<T>()
            && array.null_count() == 0
        {
            return Ok(array.values().clone());
        }
        let values = self.narrow_integers::<T>(name, array)?.into_iter().enumerate();
        let values = values.map(|(row, value)| value.ok_or_else(|| self.null(name, row, &integer_of::<T>())));
        values.collect::<Result<Vec<_>>>().map(ScalarBuffer::from)
    }

    fn narrow_integers<T: Integer>(&self, name: &str, array: &'a ArrayRef) -> Result<Vec<Option<T::Native>>> {
        let values = self.by_row(name, array, |array| self.wide_integers(name, array, &type_name::<T>()))?;
        let narrow = values.into_iter().enumerate().map(|(row, value)| {
            value.map(T::Native::try_from).transpose().map_err(|_| {
                let text = value.unwrap_or_default().to_string();
                self.invalid(InvalidKind::Limit, name, row, Some(text.as_bytes()), &integer_of::<T>())
            })
        });
        narrow.collect()
    }

    fn wide_integers(&self, name: &str, array: &ArrayRef, expected: &str) -> Result<Vec<Option<i128>>> {
        macro_rules! wide {
            ($type:ty) => {
                array.as_primitive::<$type>().iter().map(|value| value.map(i128::from)).collect()
            };
        }
        Ok(match array.data_type() {
            DataType::Int8 => wide!(Int8Type),
            DataType::Int16 => wide!(Int16Type),
            DataType::Int32 => wide!(Int32Type),
            DataType::Int64 => wide!(Int64Type),
            DataType::UInt8 => wide!(UInt8Type),
            DataType::UInt16 => wide!(UInt16Type),
            DataType::UInt32 => wide!(UInt32Type),
            DataType::UInt64 => wide!(UInt64Type),
            DataType::Null => vec![None; array.len()],
            other => return Err(self.mistyped(name, expected, Some(other))),
        })
    }

    /// A column of moments that may be left out, in microseconds since 1970; finer ones round up (K25).
    pub(crate) fn moments(&self, name: &str) -> Result<Option<Vec<Option<i64>>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        self.by_row(name, array, |array| self.plain_moments(name, array)).map(Some)
    }

    fn plain_moments(&self, name: &str, array: &ArrayRef) -> Result<Vec<Option<i64>>> {
        macro_rules! micros {
            ($type:ty, $convert:expr) => {
                array.as_primitive::<$type>().iter().map(|value| value.map($convert)).collect()
            };
        }
        Ok(match array.data_type() {
            DataType::Timestamp(TimeUnit::Second, _) => {
                micros!(TimestampSecondType, |value: i64| value.saturating_mul(1_000_000))
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                micros!(TimestampMillisecondType, |value: i64| value.saturating_mul(1_000))
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => micros!(TimestampMicrosecondType, |value: i64| value),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                micros!(TimestampNanosecondType, |value: i64| value.div_euclid(1_000)
                    + i64::from(value.rem_euclid(1_000) > 0))
            }
            DataType::Null => vec![None; array.len()],
            other => return Err(self.mistyped(name, "timestamp", Some(other))),
        })
    }
}
