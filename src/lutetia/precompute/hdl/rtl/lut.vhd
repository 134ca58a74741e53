library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;

-- A lookup table of K inputs, as a primitive.
entity lutetia_lut is
    generic (K : positive := 6; INIT : std_logic_vector);
    port (i : in std_logic_vector(K - 1 downto 0); o : out std_logic);
end entity;

architecture behaviour of lutetia_lut is
    constant ROWS : std_logic_vector(2 ** K - 1 downto 0) := INIT;
begin
    o <= ROWS(to_integer(unsigned(i)));
end architecture;
